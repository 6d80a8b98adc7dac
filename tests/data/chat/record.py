#!/usr/bin/env python3
"""What transformers renders of chat templates: writes constructed.json and families.json, which templates.rs reads.

    record.py      needs: pip install transformers jinja2 (recorded with transformers 5 and Jinja2 3.1)

constructed.json: a template for each part of the language, with what apply_chat_template makes of it.
families.json: the templates in families/, with conversations.
"""
import json
import pathlib
import sys

from transformers.utils.chat_template_utils import _normalize_chat_messages, render_jinja_template

HERE = pathlib.Path(__file__).parent
BOS, EOS = "<s>", "</s>"
USER = [{"role": "user", "content": "a<b é"}]
SYSTEM = [{"role": "system", "content": " Be brief. "}, *USER]
TURNS = [*SYSTEM, {"role": "assistant", "content": "Yes.\n"}, {"role": "user", "content": "x"}]

# name: template, or (template, messages)
CONSTRUCTED = {
    # Strings.
    "adjacent strings": "{{ 'ab' \"cd\"\n 'ef' }}",
    "escapes": r"{{ 'a\tb\\n\'q\" \x41 é \n' }}|{{ '\U0001F600' }}|{{ 'a\
b' }}",
    "unknown escapes": r"{{ 'a\db\.c' }}",
    "line ends in strings": "{{ 'a\r\nb' | replace('\\n', '/') }}",
    "line ends in text": "a\r\nb\rc\n",
    "concatenation": "{{ 'a' ~ 1 ~ none ~ true ~ 1.5 }}{{ 'x' + 'y' }}{{ 'ab' * 3 }}{{ 2 * 'z' }}",
    "format filter": "{{ '%s-%d' | format('a', 3) }}",
    "str.format": "{{ '{} {1}'.format('a', 'b') if false }}{{ '{}-{}'.format('a', 2) }}{{ '{0}{1}{0}'.format('a', 'b') }}{{ '{k:>5}|{x:.2f}|{y:03d}'.format(k='ab', x=1.239, y=7) }}{{ '{{}}'.format() }}",
    "case": "{{ 'a b'.title() }}{{ \"they're bill's\".title() }}{{ 'aB'.upper() }}{{ 'aB'.lower() }}{{ 'aB c'.capitalize() }}{{ 'aB'.swapcase() }}{{ 'a b-c'|title }}{{ 'hELLO wORLD'|capitalize }}",
    "strip": "[{{ ' x '.strip() }}{{ 'xxaxx'.strip('x') }}{{ '  b'.lstrip() }}{{ 'abcba'.rstrip('ab') }}{{ ' t '|trim }}{{ '--t--'|trim('-') }}]",
    "split": "{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a.b.c'.rsplit('.', 1) }}{{ 'a\nb\r\nc'.splitlines() }}{{ 'k=v=w'.partition('=')[2] }}{{ 'k=v=w'.rpartition('=')[0] }}{{ ' a b c '.split(none, 1) }}{{ ' a b c '.rsplit(none, 1) }}{{ ''.split() }}{{ ''.split(',') }}",
    "find": "{{ 'abcabc'.find('c') }}{{ 'abc'.find('z') }}{{ 'abcabc'.rfind('c') }}{{ 'abcabc'.count('b') }}{{ 'éab'.find('b') }}{{ 'abc'.index('b') }}",
    "starts": "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'abc'.startswith(('x', 'y')) }}{{ 'abc'.startswith('b', 1) }}",
    "prefixes": "{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('bc') }}{{ 'abc'.removeprefix('z') }}",
    "str.replace": "{{ 'aaa'.replace('a', 'b') }}{{ 'aaa'.replace('a', 'b', 2) }}{{ 'aaa'|replace('a', 'b', 1) }}",
    "join": "{{ ','.join(['a', 'b']) }}{{ ['a', 1, none]|join('-') }}{{ [{'k': 1}, {'k': 2}]|join('+', attribute='k') }}",
    "is methods": "{{ 'a1'.isalnum() }}{{ 'a'.isalpha() }}{{ '12'.isdigit() }}{{ 'a'.islower() }}{{ 'A'.isupper() }}{{ ' '.isspace() }}{{ ''.isspace() }}{{ '１'.isdigit() }}{{ '1'.isnumeric() }}",
    "padding": "[{{ 'ab'.center(6) }}|{{ 'ab'.ljust(4, '.') }}|{{ 'ab'.rjust(4) }}|{{ '7'.zfill(3) }}|{{ '-7'.zfill(4) }}|{{ 'ab'|center(5) }}]",
    "expandtabs": "{{ 'a\tb'.expandtabs(4) }}",
    "characters": "{% for c in 'aé😀' %}[{{ c }}]{% endfor %}{{ 'aé😀'|length }}{{ 'aé😀'[2] }}{{ 'abc'[-1] }}",
    "slices": "{{ 'abcdef'[1:4] }}{{ 'abcdef'[::-1] }}{{ 'abcdef'[-3:] }}{{ 'abcdef'[:-1:2] }}{{ [1, 2, 3][::-1] }}{{ [1, 2, 3][5:] }}{{ (1, 2, 3)[1] }}",
    # Numbers.
    "arithmetic": "{{ 7 // 2 }}{{ -7 // 2 }}{{ 7 % 4 }}{{ -7 % 4 }}{{ 2 ** 3 }}{{ 7 / 2 }}{{ 4 / 2 }}{{ 1 + 2.0 }}{{ -3 }}",
    "floats": "{{ 1.0 }}|{{ 1e20 }}|{{ 1e16 }}|{{ 1e-5 }}|{{ 0.1 + 0.2 }}|{{ 1/3 }}|{{ 1e300 * 1e10 }}|{{ 123456789.0 }}|{{ 0.0001 }}",
    "numbers as text": "{{ '12'|int + 1 }}{{ 'x'|int(5) }}{{ '3.9'|int }}{{ '1.5'|float }}{{ 3|string + 'a' }}{{ 2.5|round }}{{ 3.14159|round(2) }}{{ 2.1|round(0, 'ceil') }}{{ 2.19|round(1, 'floor') }}{{ 3.5|round }}{{ 7|round }}{{ 42|abs }}{{ -4.2|abs }}",
    "big numbers": "{{ 123456789012345678901234567890 }}{{ 2 ** 70 }}{{ 10000000000 * 10000000000 }}",
    "booleans": "{{ true }}{{ True }}{{ false }}{{ none }}{{ None }}{{ true + 1 }}{{ not 1 }}{{ 1 and 'x' }}{{ 0 or 'y' }}{{ '' or none }}",
    "comparisons": "{{ 1 < 2 }}{{ 'a' < 'b' }}{{ [1, 2] == [1, 2] }}{{ 1 == 1.0 }}{{ 1 == '1' }}{{ 1 < 2 < 3 }}{{ none == false }}{{ true == 1 }}",
    "containment": "{{ 'a' in 'abc' }}{{ 1 in [1] }}{{ 'k' in {'k': 1} }}{{ 'z' not in 'abc' }}{{ '' in 'abc' }}",
    # How values print.
    "lists print": "{{ [1, 'a', none, true, 1.0, ['b'], {'k': 'v'}] }}{{ [] }}{{ {} }}",
    "strings in lists": "{{ [\"it's\", 'say \"x\"', 'both \\' \"', 'a\\nb', 'é', 'a\\\\b', '\\t'] }}",
    "dicts print": "{{ {'b': 1, 'a': {'c': [1]}, 3: 'x'} }}",
    "undefined": "[{{ missing }}{{ missing is defined }}{{ missing|default('d') }}{{ messages[0].missing }}{{ messages[0]['missing'] is undefined }}{{ missing or 'e' }}]",
    "undefined in text": "[{% if missing %}x{% endif %}{% for a in missing %}y{% endfor %}{{ missing|length }}]",
    # JSON.
    "tojson": "{{ messages[0].content|tojson }}{{ {'a': 'é<>&\\'', 'b': [1, 2.0, none, true]}|tojson }}",
    "tojson indent": "{{ {'a': [1, {}], 'b': {}, 'c': []}|tojson(indent=2) }}{{ [1]|tojson(indent=none) }}",
    "tojson separators": "{{ {'b': 1, 'a': [1, 2]}|tojson(separators=(',', ':')) }}{{ {'b': 1}|tojson(separators=[', ', ' = ']) }}",
    "tojson sort_keys": "{{ {'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true) }}",
    "tojson ensure_ascii": "{{ 'é😀'|tojson(ensure_ascii=true) }}{{ 'é'|tojson(ensure_ascii=false) }}",
    "tojson control": "{{ 'a\\x01\\n\\t\\\\/\"\\x7f'|tojson }}",
    "tojson floats": "{{ [1.0, 1e20, 1e-7, 0.1, 100000000000000000000.0]|tojson }}",
    # Filters.
    "words": "{{ 'a b  c'|wordcount }}{{ \"it's-é 1_2\"|wordcount }}",
    "indent": "{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb\n\nc'|indent(2, true) }}|{{ 'a\n\nb'|indent(2, blank=true) }}|{{ 'a\nb'|indent('> ') }}",
    "first and last": "{{ [1, 2]|first }}{{ [1, 2]|last }}{{ 'abc'|first }}{{ 'abc'|last }}{{ [[], [1]]|last }}",
    "sums": "{{ [1, 2, 3]|sum }}{{ [{'n': 1}, {'n': 2}]|sum(attribute='n') }}{{ [3, 1, 2]|min }}{{ [3, 1, 2]|max }}{{ [1, 2]|sum(start=10) }}",
    "sort": "{{ [3, 1, 2]|sort }}{{ ['b', 'A', 'c']|sort }}{{ ['b', 'A']|sort(case_sensitive=true) }}{{ [{'n': 2}, {'n': 1}]|sort(attribute='n') }}{{ [1, 2]|sort(reverse=true) }}",
    "unique and reverse": "{{ ['a', 'A', 'b', 'a']|unique|list }}{{ [1, 2]|reverse|list }}{{ 'abc'|reverse }}",
    "select": "{{ [1, 2, 3]|select('odd')|list }}{{ [1, 2, 3]|reject('odd')|list }}{{ [0, 1, '']|select|list }}{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list }}{{ messages|rejectattr('role', '==', 'user')|list|length }}{{ messages|selectattr('role', 'in', ['user', 'tool'])|list|length }}{{ messages|selectattr('missing')|list }}",
    "map": "{{ ['a', 'b']|map('upper')|join }}{{ [1, 2]|map('string')|list }}{{ messages|map(attribute='name', default='n')|list }}{{ [[1, 2]]|map('first')|list }}",
    "batch and slice": "{{ [1, 2, 3]|batch(2)|list }}{{ [1, 2, 3]|batch(2, 0)|list }}{{ [1, 2, 3]|slice(2)|list }}",
    "groupby": "{% for k, g in [{'a': 1, 'b': 2}, {'a': 1, 'b': 3}, {'a': 0, 'b': 4}]|groupby('a') %}{{ k }}:{{ g|map(attribute='b')|list }};{% endfor %}",
    "dictsort and items": "{% for k, v in {'b': 1, 'A': 2}|dictsort %}{{ k }}{{ v }}{% endfor %}{% for k, v in {'b': 1, 'a': [true, none]}.items() %}{{ k }}={{ v|tojson }};{% endfor %}{% for k, v in {'b': 2, 'a': 1}|dictsort(by='value') %}{{ k }}{% endfor %}{% for k, v in {'b': 1}|items %}{{ k }}{{ v }}{% endfor %}",
    "dict methods": "{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.get('b', 2) }}{{ {'a': 1, 'b': 2}.keys()|list }}{{ {'a': 1}.values()|list }}{{ {'a': 1}.copy() }}{{ {'a': 1}|length }}",
    "default": "{{ none|default('d') }}{{ ''|default('d', true) }}{{ none|d('e', true) }}{{ missing|default }}",
    "filters on text": "{{ 'a&b<c>'|e }}{{ 'abc'|upper|lower }}{{ 'abc'|list }}",
    "attr": "{{ messages[0]|attr('role') }}{{ {'a': 1}|attr('a') }}",
    "filter blocks": "{% filter upper %}ab{{ 'c' }}{% endfilter %}",
    # Tests.
    "type tests": "{{ 'a' is string }}{{ 1 is number }}{{ 1.0 is float }}{{ 1 is integer }}{{ true is boolean }}{{ true is number }}{{ true is integer }}{{ [] is iterable }}{{ 'a' is iterable }}{{ {} is mapping }}{{ [] is sequence }}{{ 'a' is sequence }}{{ {} is sequence }}{{ none is none }}{{ 1 is none }}{{ true is true }}{{ 1 is true }}{{ false is false }}",
    "other tests": "{{ 3 is odd }}{{ 4 is even }}{{ 6 is divisibleby 3 }}{{ 1 is eq 1 }}{{ 1 is ne 2 }}{{ 2 is gt 1 }}{{ 'a' is in ['a'] }}{{ 'a' is lower }}{{ 'A' is upper }}{{ 1 is sameas 1 }}{{ 'upper' is filter }}{{ 'even' is test }}{{ x is not defined }}{{ raise_exception is callable }}",
    # Statements.
    "loop variables": "{% for x in ['a', 'b', 'c'] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('o', 'e') }}{{ loop.changed(x) }};{% endfor %}",
    "loops": "{% for x in [1, 2, 3, 4] if x is even %}{{ x }}{{ loop.length }}{% else %}none{% endfor %}{% for x in [] %}{% else %}none{% endfor %}{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(6, 0, -2) %}{{ i }}{% endfor %}",
    "break and continue": "{% for x in range(9) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "recursive loops": "{% for x in [{'n': 1, 'c': [{'n': 2, 'c': []}]}] recursive %}{{ x.n }}{{ loop.depth }}({{ loop(x.c) }}){% endfor %}",
    "scopes": "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}",
    "namespaces": "{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.s = ns.s ~ m.role[0] %}{% endfor %}{{ ns.n }}{{ ns.s }}",
    "set": "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set s %}<{{ messages[0].role }}>{% endset %}{{ s }}{% set t | upper %}abc{% endset %}{{ t }}",
    "macros": "{% macro f(x, y='d', z=none) -%}<{{ x }}:{{ y }}:{{ z }}>{%- endmacro %}{{ f('a') }}{{ f('b', y='c') }}{{ f(z=1, x=2) }}",
    "callers": "{% macro f(x) %}[{{ x }}{{ caller() }}]{% endmacro %}{% call f('a') %}b{% endcall %}{% macro g() %}{{ caller('k') }}{% endmacro %}{% call(v) g() %}{{ v }}!{% endcall %}",
    "globals": "{{ dict(a=1, b='c') }}{{ range(3)|list }}{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{% set j = joiner('|') %}{{ j() }}x{{ j() }}y",
    "with": "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}",
    "raw and comments": "{# no #}{% raw %}{{ x }}{% endraw %}a{#- b -#} c",
    "white space": "{%- if true %}\n    {%- for m in messages %}\n        {{- m.role }}\n    {%- endfor %}\n{%- endif %}\n\nend\n",
    "white space blocks": "{% for m in messages %}\n    {% if m.role == 'user' %}\nU {{ m.content }}\n    {% endif %}\n{% endfor %}\n  {%+ if true %}x{% endif %}\nend\n",
    "white space plus": "a\n  {%+ set x = 1 %}\nb {{ x }}\n  {{- x -}}  \n c",
    "inline if": "{{ 'yes' if messages[0].role == 'user' else 'no' }}[{{ 'x' if false }}]{{ ('a' if true else 'b') ~ 'c' }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n{% generation %}\nx\n{% endgeneration %}\n{% endfor %}",
    "lists": "{{ [1] + [2] }}{{ [0] * 3 }}{{ [1, 2].index(2) }}{{ [1, 1].count(1) }}{{ [3, 4].copy() }}",
    "dicts from pairs": "{{ dict([('a', 1), ('b', 2)]) }}{{ dict({'a': 1}, b=2) }}",
    "attributes and keys": "{{ messages[0]['role'] }}{{ messages[0].role }}{% set k = 'role' %}{{ messages[0][k] }}{{ {'items': 1}['items'] }}{{ {'keys': [1]}.keys() | list }}",
    "chained filters and tests": "{{ messages|length > 1 and messages[0].role is string }}{{ (messages|last).content|trim|upper }}{{ not messages }}",
    "messages": ("{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}{% if not loop.last %}\n{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}{{ bos_token }}{{ eos_token }}", TURNS),
    "arguments": "{{ tools is none }}{{ documents is none }}{{ tools is defined }}{{ not tools }}",
    "null content": ("{{ messages[0].content is none }}[{{ messages[0].content }}]{{ messages[0]['content'] or 'empty' }}", [{"role": "assistant", "content": None}]),
    "parts": ("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}", [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]),
}
# What minijinja cannot do ends in an error that has this in it.
UNSUPPORTED = {
    "percent": ("{{ '%s-%d' % ('a', 3) }}", "%"),
    "negative powers": ("{{ 2 ** -1 }}", "2 ** -1"),
    "wordwrap": ("{{ 'aaa bbb ccc ddd'|wordwrap(7) }}", "wordwrap"),
    "truncate": ("{{ 'abcdefghijklmnop'|truncate(8) }}", "truncate"),
    "striptags": ("{{ '<b>x</b> y'|striptags }}", "striptags"),
    "urlencode": ("{{ 'a b'|urlencode }}", "urlencode"),
    "filesizeformat": ("{{ 1234567|filesizeformat }}", "filesizeformat"),
    "varargs": ("{% macro f(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ f(1, 2) }}", "argument"),
    "names of characters": (r"{{ '\N{BULLET}' }}", "\\N"),
}
# Templates that transformers refuses.
REFUSED = {
    "append": "{% set l = [] %}{% set _ = l.append(1) %}{{ l }}",
    "update": "{% set d = {} %}{% set _ = d.update({'b': 2}) %}{{ d }}",
    "raise": "{{ raise_exception('No system role, please.') }}",
    "adding text to a number": "{{ 'a' + 1 }}",
    "an attribute of what is undefined": "{{ missing.more }}",
    "an unknown filter": "{{ 'a'|nonesuch }}",
    "a list index": "{{ [1].index(2) }}",
    "int of nothing": "{{ none + 1 }}",
}


def rendered(template, messages, prompt=False, tools=None, **more):
    return render_jinja_template(
        conversations=[_normalize_chat_messages(messages)], chat_template=template, add_generation_prompt=prompt,
        tools=tools, documents=None, bos_token=BOS, eos_token=EOS, **more
    )[0][0]


def constructed():
    cases = []
    for name, template in CONSTRUCTED.items():
        template, messages = template if isinstance(template, tuple) else (template, SYSTEM)
        try:
            cases.append({"name": name, "template": template, "messages": messages, "text": rendered(template, messages)})
        except Exception as e:
            print(f"{name}: {type(e).__name__}: {e}", file=sys.stderr)
    for name, (template, what) in UNSUPPORTED.items():
        rendered(template, SYSTEM)
        cases.append({"name": name, "template": template, "messages": SYSTEM, "error": what})
    for name, template in REFUSED.items():
        try:
            print(f"{name}: rendered as {rendered(template, SYSTEM)!r}", file=sys.stderr)
        except Exception as e:
            cases.append({"name": name, "template": template, "messages": SYSTEM, "error": ""})
    return cases


def write(name, value):
    (HERE / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


write("constructed.json", constructed())
