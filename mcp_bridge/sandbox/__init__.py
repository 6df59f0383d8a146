"""Container engines and sandbox images. Nothing here depends on what runs inside a container."""
