"""Names of files: settings that differ never share one."""

from __future__ import annotations

from robustcf._io.text import digest_name


def test_names_tell_settings_apart_and_are_safe_in_a_path() -> None:
    sizes = ([0, 0.1], [0, 0.1, 0.2], [0, 0.1 + 1e-12], [n / 10 for n in range(50)])
    names = [digest_name("my:Attack", {"sizes": each, "k": k}) for each in sizes for k in (1, 10)]
    assert len(set(names)) == len(names)
    assert digest_name("a", {"b": 1, "c": 2}) == digest_name("a", {"c": 2, "b": 1})
    for name in names:
        assert len(name) < 30
        assert not set(name) & set(" /\\:*?\"<>|'")
