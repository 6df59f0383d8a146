"""What schemas of OpenAPI mean beyond JSON Schema: inheritance, and what is beside a reference."""

import json

import pytest
from openapi_calls import built, compiled, document

from mcp_bridge.downstream.catalog.argument_check import ArgumentCheck, ArgumentError

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}


def ref(name):
    return {"$ref": f"#/components/schemas/{name}"}


def service(schema, media="application/json", openapi="3.0.3", **schemas):
    body = {"required": True, "content": {media: {"schema": schema}}}
    paths = {"/x": {"post": {"operationId": "x", "requestBody": body}}}
    return compiled(document(paths, openapi=openapi, components={"schemas": schemas}))


def schema_of(found):
    (tool,) = found.tools
    return tool["inputSchema"]


def fits(schema, **arguments):
    try:
        ArgumentCheck(schema).check(arguments)
    except ArgumentError:
        return False
    return True


def part(required, **properties):
    return {"type": "object", "properties": properties, "required": required}


def parent(**more):
    return (
        part(["kind"], kind=TEXT, id=NUMBER | {"readOnly": True}) | {"discriminator": {"propertyName": "kind"}} | more
    )


CAT = {"allOf": [ref("Pet"), part(["lives"], lives=NUMBER)]}
DOG = {"allOf": [ref("Pet"), part([], bark=TEXT)]}
KITTEN = {"allOf": [ref("Cat"), part([], weeks=NUMBER)]}


@pytest.mark.parametrize("said", [{}, {"discriminator": None}], ids=["discriminator", "heirs"])
@pytest.mark.parametrize(
    "used",
    [ref("Pet"), ref("Alias"), ref("Named"), {"allOf": [ref("Pet")]}, {"allOf": [ref("Alias")], "title": "A pet"}],
)
def test_a_parent_that_lists_its_heirs_is_one_of_them(used, said):
    listed = [ref(name) for name in ("Cat", "Dog", "Stray", "Fish")]
    pet = parent(oneOf=listed, additionalProperties=False) | said
    fish = {"allOf": [{"allOf": [ref("Pet")]}, part([], depth=NUMBER)]}
    named, stray = {"allOf": [ref("Pet")], "description": "Any pet."}, {"allOf": [ref("Pet")]}
    found = service(used, Pet=pet, Cat=CAT, Dog=DOG, Alias=ref("Pet"), Named=named, Stray=stray, Fish=fish)
    schema = schema_of(found)
    # A dog fits both where a number of lives is allowed to be there.
    assert fits(schema, body={"kind": "Dog", "bark": "w", "lives": 1})
    assert fits(schema, body={"kind": "Cat", "lives": 9})
    assert not fits(schema, body={"lives": 9})
    assert fits(schema, body={"kind": "Stray"})
    assert built(found, "x", body={"kind": "Cat", "lives": 9}).content == b'{"kind":"Cat","lives":9}'


@pytest.mark.parametrize(
    "mapping", [{}, {"cat": "#/components/schemas/Cat", "pet": "Pet"}, {"cat": "Cat", "gone": "#/nowhere", "x": 1}]
)
def test_heirs_that_name_their_parent_can_be_sent_and_so_can_the_parent(mapping):
    pet = parent() | {"discriminator": {"propertyName": "kind", "mapping": mapping}}
    schemas = {"Pet": pet, "Cat": CAT, "Kitten": KITTEN, "Named": {"allOf": [ref("Pet")], "title": "Any pet"}}
    assert fits(schema_of(service(ref("Named"), **schemas)), body={"kind": "cat", "lives": 9})
    schema = schema_of(service(ref("Pet"), **schemas))
    names = [each["$ref"].rpartition("/")[2] for each in schema["$defs"]["Pet"]["anyOf"]]
    assert sorted(names) == ["Cat", "Kitten", "Pet_base"]
    assert fits(schema, body={"kind": "cat", "lives": 9, "weeks": 3})
    assert fits(schema, body={"kind": "pet"})
    assert not fits(schema, body={"lives": 9})
    assert "id" not in json.dumps(schema["$defs"])


def test_a_mapping_names_heirs_that_inherit_nothing():
    pet = part([], kind=TEXT) | {"discriminator": {"propertyName": "kind", "mapping": {"fish": "Fish"}}}
    for used in (ref("Pet"), pet):
        schema = schema_of(service(used, Pet=pet, Fish=part(["depth"], depth=NUMBER)))
        assert schema["$defs"]["Fish"]["properties"] == {"depth": NUMBER}


@pytest.mark.parametrize("listed", [{}, {"oneOf": [ref("Cat"), ref("Dog")]}, {"oneOf": [ref("Kitten")]}])
def test_an_heir_has_what_its_parents_have(listed):
    schemas = {"Pet": parent(**listed), "Cat": CAT, "Dog": DOG, "Kitten": KITTEN}
    schema = schema_of(service(ref("Kitten"), **schemas))
    assert list(schema["properties"]) == ["kind", "lives", "weeks"]
    assert schema["required"] == ["kind", "lives"]
    # Within another object, too.
    schema = schema_of(service(part([], pets={"type": "array", "items": ref("Kitten")}), **schemas))
    assert fits(schema, pets=[{"kind": "kitten", "lives": 9, "weeks": 3}])
    assert not fits(schema, pets=[{"kind": "kitten", "weeks": 3}])


def test_parents_that_name_each_other_end():
    def named(name):
        return {"discriminator": {"propertyName": "kind", "mapping": {"a": name}}}

    one, other = parent() | named("Other"), {"allOf": [ref("One"), parent() | named("One")]} | named("One")
    for name in ("One", "Other"):
        schema = schema_of(service(ref(name), One=one, Other=other, Alias=ref("Alias")))
        assert fits(schema, body={"kind": "a"})


@pytest.mark.parametrize("names", [{"oneOf": [ref("Cat")]}, {"mapping": {"cat": "Cat"}}])
def test_a_part_of_a_parent_may_name_the_heirs(names):
    choice = part(["kind"], kind=TEXT) | {"discriminator": {"propertyName": "kind"} | names} | names
    schemas = {"Pet": {"allOf": [part([], id=NUMBER), choice]}, "Cat": CAT}
    assert fits(schema_of(service(ref("Pet"), **schemas)), body={"id": 1, "kind": "cat", "lives": 9})
    assert list(schema_of(service(ref("Cat"), **schemas))["properties"]) == ["id", "kind", "lives"]


def test_a_parent_without_heirs_is_a_plain_object():
    assert schema_of(service(ref("Pet"), Pet=parent()))["properties"] == {"kind": TEXT}


def test_a_form_of_a_parent_has_the_fields_of_its_heirs():
    found = service(
        ref("Pet"), "application/x-www-form-urlencoded", Pet=parent(oneOf=[ref("Cat"), ref("Dog")]), Cat=CAT, Dog=DOG
    )
    assert list(schema_of(found)["properties"]["body"]["properties"]) == ["kind", "lives", "bark"]
    assert built(found, "x", body={"kind": "Dog", "bark": "w"}).content == b"kind=Dog&bark=w"


def test_a_parent_of_very_many_may_have_any_properties_beside_its_own():
    schemas = {f"Heir{number}": {"allOf": [ref("Pet"), part(["a"], a=TEXT)]} for number in range(3000)}
    schema = schema_of(service(ref("Pet"), Pet=parent(additionalProperties=False), **schemas))
    assert schema["$defs"].keys() == {"Pet"}
    assert fits(schema, body={"kind": "x", "a": 1})
    assert not fits(schema, body={"a": 1})


BASE = part(["a"], a=TEXT)


def test_what_is_beside_a_reference_counts_from_3_1_on():
    used = ref("Base") | {"properties": {"extra": NUMBER}, "required": ["extra"], "description": "x"}
    schema = schema_of(service(used, openapi="3.1.0", Base=BASE))
    assert schema["properties"] == {"a": TEXT, "extra": NUMBER}
    assert schema["required"] == ["a", "extra"]
    assert schema_of(service(used, Base=BASE))["properties"] == {"a": TEXT}

    fields = part(["t", "u"], t=ref("T") | {"enum": ["a", "b"], "maxLength": 3, "description": "x"}, u=ref("U"))
    schemas = {"T": TEXT, "U": ref("T") | {"maxLength": 2}}
    schema = schema_of(service(fields, openapi="3.1.0", **schemas))
    assert schema["properties"]["t"]["description"] == "x"
    assert fits(schema, t="a", u="ab")
    assert not fits(schema, t="c", u="ab")
    assert not fits(schema, t="a", u="abc")
    assert fits(schema_of(service(fields, **schemas)), t="c", u="abc")


def test_an_heir_may_say_beside_a_reference_what_it_adds():
    heir = ref("Pet") | {"properties": {"lives": NUMBER}, "allOf": [part(["b"], b=TEXT)]}
    schema = schema_of(service(ref("Pet"), openapi="3.1.0", Pet=parent(oneOf=[ref("Cat")]), Cat=heir))
    assert fits(schema, body={"kind": "Cat", "b": "x", "lives": 9})
    assert not fits(schema, body={"kind": "Cat", "lives": 9})


def test_a_file_beside_a_reference_is_one():
    used = part([], f=ref("F") | {"contentEncoding": "base64"})
    request = built(service(used, "multipart/form-data", "3.1.0", F=TEXT), "x", f="aGk=")
    assert b"\r\n\r\nhi\r\n" in request.content


@pytest.mark.parametrize(("openapi", "there"), [("3.1.0", ["b"]), ("3.0.3", ["t", "b"])])
def test_a_reference_is_read_only_by_what_is_beside_it(openapi, there):
    schema = schema_of(service(part(["t", "b"], t=ref("T") | {"readOnly": True}, b=TEXT), openapi=openapi, T=TEXT))
    assert (list(schema["properties"]), schema["required"]) == (there, there)
    schema = schema_of(
        service(part(["t"], t=ref("T") | {"maxLength": 3}), openapi="3.1.0", T=TEXT | {"readOnly": True})
    )
    assert schema["properties"] == {"body": {"type": "object", "properties": {}}}


def test_no_part_requires_what_another_says_is_read_only():
    fields = {"type": "object", "properties": {"id": NUMBER | {"readOnly": True}, "n": TEXT}}
    for parts in (
        {"allOf": [fields, {"required": ["id", "n"]}]},
        {"allOf": [{"required": ["id", "n"]}, ref("Fields")]},
        {"allOf": [ref("Fields")], "required": ["id", "n"]},
    ):
        schema = schema_of(service(part([], o=parts), Fields=fields))
        assert fits(schema, o={"n": "x"})
        assert not fits(schema, o={})
