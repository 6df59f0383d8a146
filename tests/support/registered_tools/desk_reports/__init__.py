"""A package of tools: they are in its modules."""

from desk_reports import daily as daily
