"""Values that come from the environment, and the way back to their names: `${NAME}` in a text.

Whatever comes from there is taken out again of every message, since nobody knows which library will quote its options.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote

from semistream.errors import ConfigError

_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{")
#: Values shorter than this are parts of other words, and so are longer ones of only letters or only digits up to that.
_SHORT, _SHORT_WORD = 4, 8
#: A word begins after anything but a letter or digit; an escape such as \\n or %20 ends in one and is none.
_WORD_START = r"(?:(?<![^\W_])|(?<=\\[abfnrtv])|(?<=%[0-9A-Fa-f]{2})|(?<=\\x[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4}))"


@dataclass(frozen=True)
class Secrets:
    """What came from the environment, and the way back to its names.

    A long value is masked wherever it stands. A short one, such as `x` or `test`, is a part of many words, and to mask
    it there would spoil the message and give the value away ("e${NAME}ited"): it is masked where it is a whole word,
    and in the words that the file itself makes of it (`glued`).
    """

    values: dict[str, str] = field(default_factory=dict)
    glued: dict[str, str] = field(default_factory=dict)

    def fill(self, text: str, place: str, plain: Callable[[str], str] = str) -> str:
        """The text with its variables replaced; `$${` stands for a plain `${`.

        `plain` is applied to what stands between variables: their values are taken as they are.
        """
        filled, at = "", 0
        spans: list[tuple[str, int, int]] = []
        for match in _VARIABLE.finditer(text):
            filled += plain(text[at : match.start()])
            value = self._value(match, place)
            if match[1] in self.values and value and _is_short(value):
                spans.append((match[1], len(filled), len(filled) + len(value)))
            filled += value
            at = match.end()
        filled += plain(text[at:])
        for name, start, end in spans:
            while start and filled[start - 1].isalnum():
                start -= 1
            while end < len(filled) and filled[end].isalnum():
                end += 1
            self.glued[filled[start:end]] = name
        return filled

    def _value(self, match: re.Match[str], place: str) -> str:
        if match[0] == "$${":
            return "${"
        name, default = match[1], match[2]
        if name is None:
            raise ConfigError(f"{place} has a '${{' that begins no ${{NAME}}; write '$${{' for the plain signs")
        found = os.environ.get(name)
        if found is None and default is None:
            raise ConfigError(
                f"{place} wants ${{{name}}}, which is not set; set the environment variable {name}, "
                f"or give a default: ${{{name}:-…}}"
            )
        if found is None:
            return str(default)
        self.values[name] = found
        return found

    def hide(self, name: str, value: str) -> None:
        """Take a value out of messages that came from elsewhere, under some name."""
        if value and value not in self.values.values():
            number = sum(known.partition(" ")[0] == name for known in self.values)
            self.values[f"{name} {number + 1}" if number else name] = value

    def redact(self, text: str) -> str:
        """The text with `${NAME}` wherever a value stands, also as it is quoted in messages, JSON and addresses."""
        # Values last: where one is a glued word as well, it is the same name or the value's own.
        forms = {
            form: name
            for secret, name in [*self.glued.items(), *((value, name) for name, value in self.values.items())]
            for whole in (secret, *secret.splitlines())
            for form in (whole, repr(whole)[1:-1], json.dumps(whole)[1:-1], quote(whole), quote(whole, safe=""))
            if form.strip()
        }
        if not forms:
            return text
        longest_first = sorted(forms, key=len, reverse=True)
        return re.sub("|".join(map(_pattern, longest_first)), lambda match: f"${{{forms[match[0]]}}}", text)


def _is_short(form: str) -> bool:
    return len(form) < _SHORT or (len(form) < _SHORT_WORD and (form.isalpha() or form.isdigit()))


def _pattern(form: str) -> str:
    """Where a value is masked: a short one only as a whole word, or between spaces and quotes if it is none."""
    escaped = re.escape(form)
    if not _is_short(form):
        return escaped
    if not any(sign.isalnum() for sign in form):
        return rf"(?<![^\s\"'=]){escaped}(?![^\s\"',;])"
    before = _WORD_START if form[0].isalnum() else ""
    after = r"(?![^\W_])" if form[-1].isalnum() else ""
    return f"{before}{escaped}{after}"
