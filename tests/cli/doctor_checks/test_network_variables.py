"""What doctor finds in the environment and in the files of other clients: each fault, once, and how to mend it."""

import pytest

from mcp_bridge.cli.doctor_checks.network_variables import CERTIFICATE_FILES, findings

PEM = "/etc/ssl/certs/ca-certificates.crt"
EXEMPT = {"NO_PROXY": "localhost,127.0.0.1"}


def said(**environ):
    return [f"{found.message} {found.hint}" for found in findings(environ)]


def test_a_sound_environment_has_nothing_to_say(tmp_path):
    environ = dict.fromkeys(CERTIFICATE_FILES, PEM) | {"SSL_CERT_DIR": f"{tmp_path}:/etc/ssl/certs"}
    proxy = "http://user:word@proxy.example.com:3128"
    assert said(**environ, HTTPS_PROXY=proxy, https_proxy=proxy, **EXEMPT) == []
    assert said(ALL_PROXY="socks5h://proxy:1080", no_proxy="*") == []
    assert said() == []


@pytest.mark.parametrize("name", CERTIFICATE_FILES)
def test_a_variable_that_names_no_certificates_is_named(tmp_path, name):
    (missing,) = said(**{name: str(tmp_path / "none.pem")})
    assert missing.startswith(f"{name} is {tmp_path}/none.pem, which isn't there:")
    assert missing.endswith(f"Name a file of certificates in PEM form that is there, or unset {name}.")
    (tmp_path / "text").write_text("not a certificate")
    (wrong,) = said(**{name: str(tmp_path / "text")})
    assert "which holds no certificate" in wrong


def test_a_folder_of_certificates_has_to_be_one(tmp_path):
    (found,) = said(SSL_CERT_DIR=f"/etc/ssl/certs:{tmp_path}/none")
    assert f"SSL_CERT_DIR is {tmp_path}/none, which is no folder" in found


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("proxy.example.com:3128", "it has no http:// before it"),
        ("user:word@proxy:3128", "it has no http:// before it"),
        ("http://proxy:many", "its port or host can't be read"),
        ("ftp://proxy:21", "it begins with ftp://"),
        ("http://", "it has no host"),
    ],
)
def test_a_proxy_that_is_none_is_named_without_what_may_be_a_password(value, wrong):
    (found,) = said(HTTPS_PROXY=value, **EXEMPT)
    assert found == f"HTTPS_PROXY is no proxy's address: {wrong}. Write it as http://HOST:PORT, or unset HTTPS_PROXY."
    assert "word" not in found


def test_proxies_that_differ_and_a_loopback_that_goes_through_one_are_told():
    differ, loopback = said(HTTPS_PROXY="http://a:1", https_proxy="http://b:1", NO_PROXY="localhost, .example.com")
    assert "HTTPS_PROXY and https_proxy differ" in differ
    assert "NO_PROXY lacks 127.0.0.1" in loopback
    assert loopback.endswith("Set NO_PROXY and no_proxy to 127.0.0.1,example.com,localhost.")
