"""The addresses that HTTP targets may reach, and the setting that allows more of them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.errors import ConfigError
from duly.worker.targets.egress import Egress

CLOSED = Egress()

REFUSED = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "100.127.255.255",
    "127.0.0.1", "127.255.255.255", "168.63.129.16", "169.254.169.254", "169.254.170.2", "172.16.0.1",
    "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1",
    "198.19.255.255", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1",
    "64:ff9b::a9fe:a9fe", "64:ff9b::127.0.0.1", "64:ff9b::10.1.2.3", "64:ff9b:1::1", "64:ff9b:1::8.8.8.8",
    "64:ff9b:1:fffe::169.254.169.254", "100::1", "2001::1", "2001:0:a9fe:a9fe::1", "2001:2::1", "2001:10::1",
    "2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2002:a00:1::1", "2a00:1450::5efe:7f00:1",
    "2a00:1450::200:5efe:a9fe:a9fe", "2a00:1450::300:5efe:10.0.0.1", "3fff::1", "3fff:fff:ffff::1", "4000::1",
    "5f00::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fe80::1%lo", "febf::1", "fec0::1", "ff02::1",
    "ff0e::1",
]  # fmt: skip

REACHED = [
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "93.184.215.14", "100.63.255.255", "100.128.0.0",
    "126.255.255.255", "128.0.0.0", "168.63.129.15", "172.15.255.255", "172.32.0.0", "192.0.1.1", "223.255.255.255",
    "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1", "2001:4860:4860::8888", "2606:4700::1111",
    "2a00:1450::5efe:808:808", "2a00:1450:4001::200e",
]  # fmt: skip


@pytest.mark.parametrize("address", REFUSED)
def test_what_is_not_on_the_open_internet_is_refused_with_a_reason(address: str) -> None:
    assert CLOSED.refusal(address)


@pytest.mark.parametrize("address", REACHED)
def test_what_is_on_the_open_internet_is_reached(address: str) -> None:
    assert CLOSED.refusal(address) is None


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_alike_in_whatever_ipv6_address_it_hides(inner: IPv4Address) -> None:
    number = int(inner)
    refused = CLOSED.refusal(inner) is not None
    for outer in (
        (0xFFFF << 32) | number,
        int(IPv6Address("64:ff9b::")) | number,
        int(IPv6Address("2002::")) | (number << 80) | 1,
        int(IPv6Address("2a00:1450::")) | (0x02005EFE << 32) | number,
    ):
        assert (CLOSED.refusal(IPv6Address(outer)) is not None) == refused


@given(st.ip_addresses())
def test_nothing_that_python_calls_private_or_local_is_reached(address: IPv4Address | IPv6Address) -> None:
    """Python's list may hold addresses that ours lacks. Ours also refuses some that Python calls global."""
    plain = address.ipv4_mapped or address if isinstance(address, IPv6Address) else address
    if plain.is_private or plain.is_loopback or plain.is_link_local or plain.is_multicast or plain.is_unspecified:
        assert CLOSED.refusal(address)


@pytest.mark.parametrize(
    ("setting", "address"),
    [
        ("127.0.0.0/8", "127.0.0.1"),
        ("127.0.0.0/8", "::ffff:127.0.0.1"),
        (" 10.1.2.3 , fd00::/8 ,", "10.1.2.3"),
        ("10.1.2.3,fd00::/8", "fd12::1"),
        ("fe80::/10", "fe80::1%lo"),
        ("10.0.0.0/8", "64:ff9b::10.1.2.3"),
        ("64:ff9b:1::/48", "64:ff9b:1::10.1.2.3"),
        ("0.0.0.0/0,::/0", "169.254.169.254"),
    ],
)
def test_what_the_setting_allows_is_reached(setting: str, address: str) -> None:
    assert CLOSED.refusal(address)
    assert Egress.parse(setting).refusal(address) is None


def test_the_setting_allows_no_more_than_it_names() -> None:
    egress = Egress.parse("127.0.0.1, 10.0.0.0/24, hooks.internal")
    for address in ("127.0.0.2", "10.0.1.0", "::1", "192.168.0.1", "::ffff:127.0.0.2", "64:ff9b::127.0.0.2"):
        assert egress.refusal(address)
    assert egress.allows_host("HOOKS.internal.")
    assert not egress.allows_host("evil.hooks.internal")
    assert not egress.allows_host("internal")


@pytest.mark.parametrize(
    "entry",
    ["10.0.0.1/8", "300.1.1.1", "127.1", "0x7f.1", "2130706433", "hooks.0x1", "*.internal", "hooks:8080", "[::1]",
     "http://hooks/", "-a.b", "a..b", "bücher.example", "10.0.0.0/33", "a b", "x" * 64],
)  # fmt: skip
def test_a_bad_entry_is_refused_with_the_name_of_the_setting(entry: str) -> None:
    with pytest.raises(ConfigError, match="DULY_EGRESS_ALLOW") as refused:
        Egress.parse(f"127.0.0.0/8,{entry}")
    assert repr(entry)[1:-1] in str(refused.value)


def test_an_address_with_a_mask_says_which_network_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"10\.0\.0\.0/8"):
        Egress.parse("10.0.0.1/8")
