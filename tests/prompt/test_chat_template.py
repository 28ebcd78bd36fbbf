"""The sandbox around a checkpoint's template: what it offers, and where it draws the line."""

from __future__ import annotations

import datetime
import resource
from typing import Any

import pytest
from tokenizers import AddedToken

from maple.prompt import sandbox as template_sandbox
from maple.prompt.control_text import SEAL, ControlText
from maple.prompt.template import ChatTemplate, TemplateFailed, TemplateInvalid, TemplateRefused

CONTROL = ControlText({0: AddedToken("<think>"), 1: AddedToken("</think>")})


def rendered(source: str, **variables: Any) -> str:
    return "".join(ChatTemplate(source).render(variables, CONTROL))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("a {% generation %}b{{ 1 }}{% endgeneration %} c", "a b1 c"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        (
            "{% set ns = namespace(n=0) %}{% for x in 'ab' %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "2",
        ),
        ("{{ dict(a=1).a }}{{ dict([('b', 2)])['b'] }}", "12"),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m('a') }}{{ m(1) }}", "[a][1]"),
        ("{% for x in [[1, [2]], [3]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{% for x in [] %}x{% else %}none{% endfor %}", "none"),
        ("{{ 2 ** 3 }} {{ 'ab' * 2 }} {{ 'a' + 'b' }} {{ [1] + [2] }} {{ 3 * 4 }}", "8 abab ab [1, 2] 12"),
    ],
)
def test_what_templates_may_use(source: str, expected: str) -> None:
    """Loop controls, the training tag, namespaces, macros and operators work as templates expect."""
    assert rendered(source) == expected


def test_the_training_tag_leaves_the_tag_that_follows() -> None:
    """Text and statements after a generation block are rendered as they stand."""
    assert rendered("{% generation %}{% if x %}1{% endif %}{% endgeneration %}{{ x }}", x=2) == "12"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ v | tojson }}", '{"é": ["<b>&\'", 1.0, null, true]}'),
        ("{{ v | tojson(ensure_ascii=True) }}", '{"\\u00e9": ["<b>&\'", 1.0, null, true]}'),
        ("{{ v | tojson(separators=(',', ':')) }}", '{"é":["<b>&\'",1.0,null,true]}'),
        ("{{ v | tojson(indent=1) }}", '{\n "é": [\n  "<b>&\'",\n  1.0,\n  null,\n  true\n ]\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=True) }}", '{"a": 2, "b": 1}'),
    ],
)
def test_tojson_is_plain_json(source: str, expected: str) -> None:
    """No HTML escapes, non-ASCII as it is, and the options that Transformers gives to templates."""
    assert (
        rendered(source, v=CONTROL.seal_value({"é": ["<b>&'", 1.0, None, True]})).replace(SEAL, "")
        == expected
    )


def test_strftime_now_is_today() -> None:
    """Templates can print the date."""
    before = datetime.datetime.now().astimezone().strftime("%Y")
    assert rendered("{{ strftime_now('%Y') }}") in {before, str(int(before) + 1)}


@pytest.mark.parametrize(
    ("source", "variables"),
    [
        ("{{ messages }}{{ enable_thinking }}", {"messages", "enable_thinking"}),
        ("{% if mood is not defined %}{% set mood = 1 %}{% endif %}{{ mood }}", {"mood"}),
        ("{% set mood = 1 %}{{ mood }}", set()),
        ("{% set mood = mood or 1 %}", {"mood"}),
        ("{% for m in messages %}{% if m %}{% set c = 1 %}{% endif %}{{ c }}{% endfor %}", {"messages"}),
        ("{% for m in messages %}{{ loop.index }}{% endfor %}", {"messages"}),
        ("{{ range(3) }}{{ namespace() }}{{ raise_exception }}{{ strftime_now }}{{ dict }}", set()),
        ("{% macro m(a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}", {"b"}),
    ],
)  # fmt: skip
def test_variables_are_what_comes_from_outside(source: str, variables: set[str]) -> None:
    """Names that the template gives a value itself before it reads them are not variables of it."""
    assert ChatTemplate(source).variables == variables


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{% for x in y %}",
        "{{ x",
        "{% nonsense %}",
        "{{ x | nofilter }}",
        "{% generation %}x",
        "{{ 'x' is notest }}",
        "{% for a in x %}" * 60 + "{% endfor %}" * 60,
    ],
)
def test_a_template_that_does_not_compile_is_one_line(source: str) -> None:
    """A broken template is refused when it is loaded."""
    with pytest.raises(TemplateInvalid) as caught:
        ChatTemplate(source)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "source",
    [
        "{{ x.y.z }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ x() }}",
        "{{ messages | tojson }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ dict.__globals__.x }}",
        "{{ ().__class__.__base__ }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(_x=1) }}",
        "{{ [].append(1) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% include 'other' %}",
        "{% import 'other' as o %}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 10 ** 9 * 'x' }}",
        "{{ 2 ** 1000000 }}",
        "{% set ns = namespace(x='x') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ range(10 ** 9) }}",
    ],
)
def test_a_template_that_breaks_is_one_line(source: str) -> None:
    """Whatever a template does wrong while it renders, and every way out of the sandbox, is one error."""
    with pytest.raises(TemplateFailed) as caught:
        rendered(source)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


HUGE = "3" + "0" * 10
DOUBLING = (
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"
)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' | center(HUGE) }}",
        "{{ ['x'] | map('center', HUGE) | list }}",
        *("{{ 'x'.METHOD(HUGE) }}".replace("METHOD", name) for name in ("center", "ljust", "rjust", "zfill")),
        "{{ '\\t'.expandtabs(HUGE) }}",
        "{{ ('\\t' * 1000000).expandtabs(1000000) }}",
        "{{ '%HUGEd' % 1 }}",
        "{{ '%*d' % (HUGE, 1) }}",
        "{{ '%.HUGEf' % 1 }}",
        "{{ '%HUGEd' | format(1) }}",
        "{{ '{:>HUGE}'.format('x') }}",
        "{{ '{:>{}}'.format('x', HUGE) }}",
        "{{ ('{0}' * 1000000).format('x' * 1000000) }}",
        "{{ ('%s' * 1000000) % ('x' * 1000000) }}",
        "{{ [1] | batch(HUGE, 0) | list }}",
        "{{ [1] | slice(HUGE, 0) | list }}",
        "{{ 'x\\ny' | indent(HUGE) }}",
        "{{ ('\\n' * 1000000) | indent(1000000) }}",
        "{{ ('\\n' * 1000000) | indent('x' * 1000000) }}",
        "{{ ('x' * 1000000).translate({120: 'x' * 1000000}) }}",
        "{{ ('x' * 60000000).translate({120: 'xx'}) }}",
        "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
        "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}",
        "{{ ('x' * 1000000).replace('', 'y' * 1000000) }}",
        "{{ ('x' * 1000000).join(['y'] * 1000000) }}",
        "{{ ('x' * 1000000).join('y' * 1000000) }}",
        "{{ (['y'] * 1000000) | join('x' * 1000000) }}",
        "{{ ['x' * 1000000] * 1000000 }}",
        "{{ (['x' * 1000000] * 1000) | join }}",
        "{{ (['x' * 1000000] * 1000) | tojson }}",
        "{{ [1] | tojson(indent=HUGE) }}",
        "{{ 9 ** 64 ** 64 ** 64 }}",
        "{{ ((9 ** 64) ** 64) ** 64 }}",
        "{{ 9 ** -HUGE }}",
        "{% set ns = namespace(x=9 ** 64) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        DOUBLING.replace("STEP", "ns.x ~ ns.x"),
        DOUBLING.replace("STEP", "ns.x + ns.x"),
        DOUBLING.replace("STEP", "ns.x.join([ns.x, ns.x, ns.x])"),
        DOUBLING.replace("STEP", "[ns.x, ns.x] | join"),
        DOUBLING.replace("STEP", "'%s%s' % (ns.x, ns.x)"),
        DOUBLING.replace("STEP", "'{0}{0}'.format(ns.x)"),
        DOUBLING.replace("STEP", "ns.x | replace('x', 'xx')"),
        DOUBLING.replace("STEP", "[ns.x, ns.x]"),
        DOUBLING.replace("STEP", "{1: ns.x, 2: ns.x}"),
        DOUBLING.replace("{{ ns.x }}", "{{ ns.x | tojson }}").replace("STEP", "[ns.x, ns.x]"),
        DOUBLING.replace("{{ ns.x }}", "{{ ns.x ~ '' }}").replace("STEP", "[ns.x, ns.x]"),
        DOUBLING.replace("{{ ns.x }}", "{{ ns.x | string }}").replace("STEP", "[ns.x, ns.x]"),
        DOUBLING.replace("{{ ns.x }}", "{{ '%s' % [ns.x] }}").replace("STEP", "[ns.x, ns.x]"),
        DOUBLING.replace(
            "{% set ns.x = STEP %}", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"
        ),
        "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + DOUBLING.replace("STEP", "m(ns.x)"),
        "{{ lipsum(n=HUGE) }}",
    ],
)
def test_nothing_huge_is_built_whatever_builds_it(source: str) -> None:
    """Operators, filters, methods, captured blocks: refused for what they are given, before they have built it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TemplateFailed):
        rendered(source.replace("HUGE", HUGE))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB, and not 30 GB


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'x' | center(5) }}|{{ 'x'.ljust(3) }}|{{ '7'.zfill(3) }}", "  x  |x  |007"),
        ("{{ '%5d' % 1 }}|{{ '%s-%s' % ('a', 2) }}|{{ '%d%%' % 5 }}|{{ 7 % 4 }}", "    1|a-2|5%|3"),
        ("{{ '{:>4}'.format('x') }}|{{ '{a}{}'.format(1, a=2) }}|{{ '%s' | format('y') }}", "   x|21|y"),
        ("{{ [1, 2, 3] | batch(2, 0) | list }}", "[[1, 2], [3, 0]]"),
        (
            "{{ 'a\nb' | indent(2) }}|{{ 'aXb'.replace('X', '-') }}|{{ 'ab' | replace('b', 'c') }}",
            "a\n  b|a-b|ac",
        ),
        (
            "{{ ', '.join(['a', 'b']) }}|{{ [1, 2] | join('+') }}|{{ 'abc' | map('upper') | join }}",
            "a, b|1+2|ABC",
        ),
        ("{{ 1 ~ 'a' ~ none ~ missing }}|{{ 'x' ~ ('y' ~ 'z') }}", "1aNone|xyz"),
        ("{{ 2 ** 10 }}|{{ 2.0 ** -1 }}|{{ 3 * 'ab' }}|{{ [1] * 2 + [3] }}", "1024|0.5|ababab|[1, 1, 3]"),
        (
            "{% set x %}a{{ 1 }}{% endset %}{{ x }}|{{ [3, 1] | sum }}|{{ {'a': 1} | tojson(indent=1) }}",
            'a1|4|{\n "a": 1\n}',
        ),
    ],
)
def test_what_templates_do_is_as_in_jinja(source: str, text: str) -> None:
    """The bounds are far beyond it."""
    assert rendered(source) == text


def test_a_failure_tells_the_place_and_no_text_of_the_client() -> None:
    """The kind and the line are for the log, which holds no prompts."""
    with pytest.raises(TemplateFailed) as caught:
        rendered("\n{% set x = 1 %}\n{{ x + secret }}", secret="my secret")
    assert caught.value.reason == "TypeError in line 3"
    with pytest.raises(TemplateFailed, match=r"^the chat template failed: UndefinedError in line 1$"):
        rendered("{{ {}[secret].x }}", secret="my secret")


def test_a_refusal_is_told_apart() -> None:
    """raise_exception is the template's way to refuse a conversation, not a failure of it."""
    with pytest.raises(TemplateRefused, match="roles must alternate"):
        rendered("{{ raise_exception('roles must\\nalternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(30) }}",
    ],
)
def test_a_template_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Loops and calls are stopped when the time is up."""
    monkeypatch.setattr(template_sandbox, "RENDER_SECONDS", 0.05)
    with pytest.raises(TemplateFailed, match="ran for more than"):
        rendered(source)


def test_rendering_can_be_abandoned() -> None:
    """The caller may stop reading the output of a template that never stops printing."""
    template = ChatTemplate(
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}"
    )
    parts = template.render({}, CONTROL)
    assert next(parts) == "x"
    parts.close()
    assert rendered("{{ 1 }}") == "1"
