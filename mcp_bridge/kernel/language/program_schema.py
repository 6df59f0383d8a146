"""The published JSON Schema of programs, made from the tables that the validator reads (`step_fields`)."""

from mcp_bridge.kernel.language.step_fields import (
    MAP_TYPES,
    NAME,
    PARALLEL_TYPES,
    PROGRAM,
    TYPES,
    Json,
    Place,
    step_fragment,
)


def json_schema() -> Json:
    """The JSON Schema (draft 2020-12) of a program: it accepts what the validator finds no fault of form in.

    It doesn't have what no schema can say: targets that exist, unique ids, valid conditions and references, known
    programs, how deep programs nest.
    """
    places: dict[Place, tuple[str, ...]] = {"program": tuple(TYPES), "parallel": PARALLEL_TYPES, "map": MAP_TYPES}
    definitions: Json = {}
    for place, kinds in places.items():
        for kind in kinds:
            definitions[f"{place}_{kind}"] = _published(kind, place)

    def steps_of(place: Place) -> Json:
        return {"oneOf": [{"$ref": f"#/$defs/{place}_{kind}"} for kind in places[place]]}

    parallel = definitions["program_parallel"]["properties"]
    parallel["parallel_steps"] = parallel["parallel_steps"] | {"items": steps_of("parallel")}
    definitions["program_map"]["properties"]["step"] = steps_of("map")
    properties = {name: fragment for name, (fragment, _) in PROGRAM.items()}
    properties["steps"] = properties["steps"] | {"items": steps_of("program")}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A program of mcp-code-bridge",
        "type": "object",
        "properties": properties,
        "required": ["steps"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _published(kind: str, place: Place) -> Json:
    fragment = step_fragment(kind, place)
    properties = dict(fragment["properties"])
    if "program" in TYPES[kind].required:
        properties["program"] = {"anyOf": [NAME, {"$ref": "#"}]}
    if "retry" in TYPES[kind].optional:
        properties["retry"] = properties["retry"] | {"dependentSchemas": {"schedule": {"maxProperties": 1}}}
    published: Json = fragment | {"properties": properties}
    if one_of := TYPES[kind].one_of:
        given = [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in one_of]
        published["oneOf" if kind == "wait" else "anyOf"] = given
    return published
