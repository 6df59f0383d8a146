"""Services that an OpenAPI document describes: their operations as tools, called over HTTP."""
