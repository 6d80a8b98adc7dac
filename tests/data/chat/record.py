#!/usr/bin/env python3
"""What transformers renders of chat templates: writes what tests/data and tests/published compare with.

    record.py                needs: pip install transformers jinja2 (recorded with transformers 5 and Jinja2 3.1)
    record.py FOLDER..       writes published.json of these folders' templates, see PUBLISHED

constructed.json: a template for each part of the language, with what apply_chat_template makes of it.
families.json: conversations, and what it makes of them for each template in families/. These templates are our own, in
the forms of their families: those that models are published with stay with their publishers.
published.json: hashes of published templates and of what they render, for whoever has them as files.
"""
import datetime
import hashlib
import json
import pathlib
import sys

import transformers.utils.chat_template_utils
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
    "text filters on others": "{{ [1, 'a']|trim }}{{ none|upper }}{{ ['A']|lower }}{{ {'k': none}|capitalize }}{{ '--a'|trim(chars='-') }}{{ missing|trim }}",
    "attr": "{{ messages[0]|attr('role') }}{{ {'a': 1}|attr('a') }}",
    "filter blocks": "{% filter upper %}ab{{ 'c' }}{% endfilter %}",
    # Tests.
    "type tests": "{{ 'a' is string }}{{ 1 is number }}{{ 1.0 is float }}{{ 1 is integer }}{{ true is boolean }}{{ true is number }}{{ true is integer }}{{ [] is iterable }}{{ 'a' is iterable }}{{ {} is mapping }}{{ [] is sequence }}{{ 'a' is sequence }}{{ {} is sequence }}{{ none is none }}{{ 1 is none }}{{ true is true }}{{ 1 is true }}{{ false is false }}",
    "iterable": "{{ none is iterable }}{{ 1 is iterable }}{{ missing is iterable }}{{ tools is iterable and tools|length > 0 }}{{ range(2) is iterable }}",
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
# Values for the templates below.
VALUES = (
    "{% set l = [3, 1, 2] %}{% set s = 'héllo wörld' %}{% set html = '<b>&\\'\"</b>' %}{% set text = 'line1\\nline2\\n\\nline4' %}"
    "{% set d = {'b': 1, 'a': [1, 2.5, none, true, \"it's\"], 'items': {'type': 'string'}, 'keys': 'K'} %}"
    "{% set objs = [{'n': 2, 'k': 'x', 'o': {'p': 1}}, {'n': 1, 'k': 'y', 'o': {'p': 0}}, {'n': 2, 'k': 'z', 'o': {'p': 5}}] %}"
)
# What Python and minijinja do not do alike.
KINDS = {
    # Types.
    "tuples": "{{ (1, 2) }}{{ (1,) }}{{ () }}{{ ('a', (1, 2), [3]) }}{{ {'a': (1, 2)} }}{{ ((1, 2)) }}{{ ([1, 2]) }}{{ (1, 2) == [1, 2] }}{{ (1, 2) == (1, 2) }}{{ (1, 2) + (3,) }}{{ (1, 2) * 2 }}{{ (1, 2)[::-1] }}{{ (1, 2)|list }}{{ (1, 2)|tojson }}{{ (1, 2) < (1, 3) }}{{ {(1, 2): 'x'} }}{{ (1, 2).count(1) }}{{ (1, 2).index(2) }}",
    "tuples without parentheses": "{% set x = 1, 2 %}{{ x }}{% set x = 1, [2] %}{{ x }}{% set x = [1, 2], [2] %}{{ x }}{% set x = 1, %}{{ x }}{% set x = [1, 2] %}{{ x }}",
    "tuples of methods and filters": "{{ d.items()|list }}{{ d|items|list }}{{ d|dictsort }}{{ 'a,b'.partition(',') }}{{ 'a'.rpartition(',') }}{% for p in {'a': 1}.items() %}{{ p }}{{ p[0] }}{% endfor %}{{ objs|groupby('n') }}{% for g in objs|groupby('n') %}{{ g.grouper }}{{ g.list|length }}{{ g[0] }}{% endfor %}",
    "views of dicts": "{{ d.items() }}{{ d.keys() }}{{ d.values() }}{{ {}.keys() }}{{ 'b' in d.keys() }}{{ 1 in d.values() }}{{ ('b', 1) in d.items() }}{{ d.keys()|length }}{{ d.keys() is sequence }}[{{ d.keys()[0] }}]",
    "ranges": "{{ range(3) }}{{ range(1, 5) }}{{ range(1, 9, 2) }}{{ range(5, 0, -2)|list }}{{ range(-3)|list }}{{ range(3)[1] }}{{ range(3) == range(3) }}{{ range(3) == [0, 1, 2] }}{{ range(3)|last }}{{ 5 in range(3) }}{{ 'a' if range(0) else 'b' }}",
    "generators": "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}{% set g = l|select('odd') %}{% for x in g %}{{ x }}{{ loop.length }}{% endfor %}{% for x in g %}{{ x }}{% else %}none{% endfor %}{{ 'true' if g }}[{{ (l|map('string'))[0] }}]{{ '3' in l|map('string') }}{{ (l|reverse) is sequence }}{{ l|reverse|first }}{{ none|map('string')|list }}",
    "dict keys": "{{ {'a': true, 1: none, 1.5: 'x', none: 2, true: 3} }}{{ {1: 'a', true: 'b', 1.0: 'c'} }}{{ {1: 2}[true] }}{{ {1: 2}.get(1.0) }}{{ {'a': 1, 'a': 2} }}",
    "methods that are not called": "{{ d.items is defined }}{{ d.items.type is defined }}{{ d['items'].type }}{{ d.items is mapping }}{{ d.keys is string }}{{ 'yes' if {}.items }}{{ d.values is callable }}{{ s.upper is defined }}{{ s['upper'] is defined }}{{ l.append is defined }}[{{ d.pop }}{{ d.__class__ }}]{% set g = d.get %}{{ g('b') }}{{ d['get']('b') }}{{ ('a'|attr('upper'))() }}{{ d.items()|length }}",
    "printing": "{{ ['\\x00\\x7f\\xa0\\u200b\\u2028😀', 1e16, missing] }}{{ [html|e] }}{{ -0.0 }}",
    # Operators.
    "concatenation of values": "{{ 'a' ~ [1, 'b'] }}{{ {'k': none} ~ '' }}{{ 1.0 ~ (1, 2) }}{{ l ~ d }}{{ [1] ~ missing ~ 'x' }}{{ s ~ '\\n' ~ l[0] ~ d.b }}{{ 'a' ~ ('b' if true else 'c') ~ none }}",
    "floors": "{{ -7 // 2 }}{{ 7 // -2 }}{{ -7 // -2 }}{{ -7 % 3 }}{{ 7 % -3 }}{{ -7 % -3 }}{{ -6 % 3 }}|{{ 7.5 // 2 }}|{{ -7.5 // 2 }}|{{ -7.5 % 2 }}|{{ 7.5 % -2 }}|{{ -1.0 // 3 }}|{{ 1 // 0.5 }}|{{ 10 ** 20 // 3 }}{{ 10 ** 20 % 7 }}",
    "powers": "{{ 2 ** -1 }}{{ 2 ** 3 ** 2 }}{{ -2 ** 2 }}{{ 4 ** 0.5 }}{{ 0 ** 0 }}{{ 2.0 ** 3 }}{{ 3 ** 50 }}",
    "booleans as numbers": "{{ true + true }}{{ true * 3 }}{{ -true }}{{ true / 2 }}{{ false // 1 }}{{ true % 2 }}{{ true ** 2 }}{{ true|abs }}{{ true|round }}{{ l[true] }}[{{ l[1.0] }}]",
    "minus": "{{ --3 }}{{ -l[0] }}{{ -d.b }}{{ -d['b'] }}{{ -d.a[1] }}{{ -3|abs }}{{ 1 - -1 }}{{ (-3)|abs }}",
    "repetition": "{{ [1] * 0 }}{{ [1] * -1 }}[{{ 'a' * -1 }}]{{ 2 * [1] }}{{ '=' * s|length }}",
    "and, or": "{{ 0 and 1 }}|{{ '' and 1 }}|{{ [] and 1 }}|{{ 1 and 0 or 3 }}|{{ none or 0 }}|{{ [] or {} }}|{{ missing or 2 }}|{{ 1 < 2 and 3 }}",
    "equality": "{{ missing == none }}{{ missing == missing }}{{ [] == () }}{{ {} == [] }}{{ [1, true] == [1.0, 1] }}{{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }}{{ 9007199254740993 == 9007199254740992.0 }}{{ 1 < 2 == 2 }}{{ 1 in [1] == true }}{{ 1 is sameas true }}{{ 3.0 is odd }}{{ -1 is odd }}",
    "slices of all kinds": "{{ s[::-2] }}{{ s[5:1:-1] }}{{ s[-100:100] }}{{ s[:-100:-1] }}{{ s[-100::-1] }}[{{ ''[::-1] }}]{{ [][::-1] }}{{ l[-1:0:-1] }}{{ l[-9::-1] }}{{ l[none:2] }}{{ l[1:] + [9] }}{{ (1, 2, 3)[1:] }}",
    "missing items": "[{{ none.x }}{{ none['x'] }}{{ l.x }}{{ s.x }}{{ (1).x }}{{ l[9] }}{{ s[99] }}{{ l['x'] }}]{{ none.x is defined }}{{ {'a': none}.get('a', 1) }}",
    "percent": "{{ '%s-%d' % ('a', 3) }}{{ '%s' % l }}{{ '%d%%' % 5 }}{{ '%(b)s' % d }}{{ '%.2f' % 1.005 }}{{ '%r' % \"it's\" }}",
    # Statements.
    "loops over characters": "{% for c in 'aé😀' %}{{ c }}{{ loop.length }}{{ loop.last }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.nextitem }}{% endfor %}{% for c in s %}{{ c }}{{ ',' if not loop.last }}{% endfor %}",
    "loops over what is undefined": "{% for x in missing %}a{% else %}b{% endfor %}{% for k in d %}{{ k }}{{ loop.length }}{% endfor %}",
    "unpacking": "{% set a, b = 'xy' %}{{ a }}{{ b }}{% set a, (b, c) = 1, (2, 3) %}{{ a }}{{ b }}{{ c }}{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for a, b in [{'x': 1, 'y': 2}] %}{{ a }}{{ b }}{% endfor %}",
    "scopes of blocks": "{% set x = 1 %}{% set y %}{% set x = 2 %}{% set z = 3 %}{{ x }}{% endset %}{{ x }}{{ y }}[{{ z }}]{% filter upper %}{% set x = 4 %}{% set z = 5 %}a{{ x }}{% endfilter %}{{ x }}[{{ z }}]{% set ns = namespace(v=1) %}{% set y %}{% set ns.v = 2 %}{% endset %}{{ ns.v }}",
    "scopes of with": "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}{% with (a, b) = (1, 2), c = a %}{{ a }}{{ b }}{{ c }}{% endwith %}",
    "defaults of macros": "{% macro f(a, b=a) %}{{ a }}{{ b }};{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{% macro g(a, b=a ~ 'x', c=b) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ g(1) }}{{ g(1, c=2) }}{% set a = 9 %}{{ f(1) }}{{ f() }}{% set b = 7 %}{% macro h(a=b, b=1) %}[{{ a }}{{ b }}]{% endmacro %}{{ h() }}",
    "macros and what is undefined": "{% macro f(a, b=2) %}[{{ a }}|{{ b }}]{% endmacro %}{{ f(missing, missing) }}{{ f(b=none) }}{{ f() }}{% macro g(a=missing) %}{{ a is defined }}{% endmacro %}{{ g() }}{{ g(1) }}",
    "macros that see what comes later": "{% macro f() %}{{ x }}{{ g() }}{% endmacro %}{% macro g() %}G{% endmacro %}{% set x = 1 %}{{ f() }}{% set x = 2 %}{{ f() }}{{ f is callable }}{{ f.name }}",
    "defaults of callers": "{% macro f() %}[{{ caller(1) }}{{ caller(1, 2) }}]{% endmacro %}{% call(a, b=a) f() %}{{ a }}{{ b }}{% endcall %}",
    "raw and its line": "{% raw %}\na{{ '{%' }}\n{% endraw %}\nb",
    "namespaces of dicts": "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}[{{ ns.c }}]{% set ns.a, ns.b = 3, 4 %}{{ ns.a }}{{ ns.b }}",
    "long chains": "{{ " + " ~ ".join(["'a'"] * 200) + " }}{{ " + " + ".join(["1"] * 200) + " }}{% if false %}" + "{% elif 0 %}" * 200 + "{% else %}b{% endif %}",
    # Texts.
    "markup": "{{ '<'|safe + '>' }}{{ '<' + '>'|safe }}{{ '<'|e + '>' }}{{ '<'|e ~ '>' }}{{ ('<'|e|upper) + '<' }}{{ ('<'|e|trim) + '<' }}{{ ('<'|safe) * 2 + '<' }}{{ ('<b>'|safe)[0] + '<' }}{{ html|e }}{{ html|e|e }}{{ html|e|forceescape }}{{ [1, '<']|e }}{{ html|e|length }}{{ (html|e) is escaped }}{{ d|tojson + '<' }}{{ d|tojson|e }}{{ (d|tojson) is escaped }}",
    "format": "{{ '%s %s'|format(1, none) }}{{ '%05d|%5d|%-5d|'|format(1, 2, 3) }}{{ '%5.1f|'|format(2.25) }}{{ '%x %X %o'|format(255, 255, 8) }}{{ '%e'|format(12345.678) }}{{ '%g %g'|format(0.00001, 123456789) }}{{ '%%'|format }}{{ '%r'|format('a') }}{{ '%s'|format([1, 'a']) }}{{ '%10s|%-10s|'|format('ab', 'cd') }}{{ '%+d'|format(5) }}{{ '%.2s'|format('abc') }}{{ '%(a)s-%(b)d'|format(a='x', b=2) }}",
    "str.format of values": "{{ '{}{}{}'.format([1, 'a'], {'a': none}, (1, 'b')) }}{{ '{!r}'.format('a') }}{{ '{a.b}'.format(a=d) }}{{ '{0[b]}'.format(d) }}{{ '{:,.2f}'.format(1234567.891) }}{{ '{:*^9}'.format('mid') }}{{ '{:10.3}|'.format('abcdef') }}{{ '{:#x}'.format(255) }}{{ '{:>5}'.format(true) }}{{ '{{}}'.format() }}",
    "capitals": "{{ \"it's o'neil-smith (foo) [bar] a_b 1st\"|title }}{{ 'ßa'|capitalize }}{{ 'ǆa'.capitalize() }}{{ 'ﬁx'.title() }}{{ 'ǅ'.isupper() }}{{ 'éa ßx ǆ'|title }}{{ 'hello\\tWORLD'|title }}",
    "characters by kind": "{{ '½'.isdigit() }}{{ '²'.isdigit() }}{{ '½'.isnumeric() }}{{ '²'.isdecimal() }}{{ '１'.isdecimal() }}{{ 'ⅷ'.isalpha() }}{{ '\\u0345'.isalpha() }}{{ 'ा'.isalnum() }}{{ '\\x1c'.isspace() }}{{ 'A b'|lower is lower }}{{ 1 is lower }}",
    "places in texts": "{{ 'abc'.find('', 5) }}{{ 'abc'.find('', 2, 1) }}{{ 'abc'.startswith('', 5) }}{{ 'abc'.count('', 5) }}{{ 'abc'.find('c', -1) }}{{ 'abc'.startswith(()) }}",
    "lines": "{{ text|indent(2, true) }}|{{ text|indent(2, blank=true) }}|{{ text|indent(first=true) }}|{{ ''|indent(2, true) }}|{{ 'a\\n\\n'|indent(2, true) }}|{{ 'a\\r\\nb'|indent(2) }}|{{ 'a\\x0bb\\x0cc'|indent(2) }}",
    # Filters.
    "sorts": "{{ ['b','A','a','B']|sort }}{{ ['b','A','a','B']|sort(reverse=true) }}{{ l|sort(true) }}{{ objs|sort(attribute='n,k', reverse=true)|map(attribute='k')|join }}{{ objs|sort(attribute='o.p')|map(attribute='k')|join }}{{ [[2], [1]]|sort }}{{ [1.5, true]|sort }}{{ {'b': 1, 'A': 2}|dictsort(true) }}{{ {'b': 1, 'A': 2}|dictsort(reverse=true) }}",
    "groups": "{{ ['b', 'A', 'a']|groupby('0')|list }}{{ [{'x': 'b'}, {'x': 'B'}, {'x': 'a'}]|groupby('x')|list }}{{ [{'x': 'b'}, {'x': 'B'}]|groupby('x', case_sensitive=true)|list }}{{ [{'x': 1}, {}]|groupby('x', default=0)|list }}{{ ['a', 'A', 'b']|unique|list }}{{ [1, 1.0, true, '1']|unique|list }}{{ objs|unique(attribute='n')|map(attribute='k')|join }}",
    "parts of lists": "{{ l|batch(2, 'x')|list }}{{ l|batch(linecount=2)|list }}{{ l|slice(2, 'x')|list }}{{ l|slice(5, 0)|list }}{{ [1, 2, 3, 4]|slice(2, 'x')|list }}{{ []|slice(2)|list }}{{ d|first }}{{ d|last }}{{ (1, 2)|last }}",
    "sums and extremes": "{{ [0.1, 0.2, 0.3]|sum }}{{ [[1], [2]]|sum(start=[]) }}{{ [true, 2]|sum }}{{ objs|max(attribute='o.p') }}{{ [1, 1.0]|max }}{{ [1.0, 1]|min }}{{ ['b', 'A']|min(case_sensitive=true) }}[{{ []|min }}]",
    "numbers from texts": "{{ '1_000'|int }}{{ '1__0'|int }}{{ '0x1f'|int(0, 16) }}{{ '0b11'|int(base=2) }}{{ none|int }}{{ '-3.99'|int }}{{ '1e3'|int }}{{ '99999999999999999999'|int }}{{ 'nan'|int(6) }}{{ none|float }}{{ '1_0.5'|float }}{{ 'x'|float('no') }}{{ 42|round(method='floor') }}{{ 2.675|round(2) }}{{ -0.4|round }}",
    "defaults": "{{ missing|d(default_value='q') }}{{ 0|default('x', boolean=true) }}{{ none|default('x') }}{{ (missing|default({})).x|default('z') }}{{ 'aXbXc'|replace('X', '-', none) }}{{ l|join(none) }}{{ 'abc'|join('-') }}{{ objs|map(attribute='o.zz', default=0)|list }}{{ [[1, 2], [3, 4]]|map(attribute='1')|list }}",
    "json of values": "{{ {1: 2, none: 3, true: 4, 1.5: 6}|tojson }}{{ {'b': 1, 'a': [{'d': 1, 'c': 2}]}|tojson(sort_keys=true, indent=1) }}{{ 'é😀\\x7f'|tojson(ensure_ascii=true) }}{{ (1e300 * 1e10)|tojson }}{{ d|tojson(true) }}{{ html|e|tojson }}",
}
CONSTRUCTED |= {name: VALUES + template for name, template in KINDS.items()}
# What is not supported ends in an error that has this in it.
UNSUPPORTED = {
    "large numbers": ("{{ 2 ** 200 }}", "2 ** 200: the number is too large"),
    "complex numbers": ("{{ (-8) ** 0.5 }}", "complex numbers are not supported"),
    "a plus before a value": ("{{ +3 }}", "`+`"),
    "printed namespaces": ("{{ namespace(a=1) }}", "printing a value of type Namespace"),
    "printed loops": ("{% for x in [1] %}{{ loop }}{% endfor %}", "printing a value of type LoopContext"),
    "printed macros": ("{% macro f() %}{% endmacro %}{{ f }}", "printing a value of type Macro"),
    "printed generators": ("{{ [1]|map('string') }}", "printing a value of type generator"),
    "printed methods": ("{{ {}.items }}", "printing a value of type method"),
    "markup's methods": ("{{ ('<'|safe).replace('<', '&') }}", "replace of a text marked as safe is not supported"),
    "autoescape": ("\n{% autoescape true %}{% endautoescape %}", "{% autoescape %} is not supported (line 2)"),
    "block": ("{% block a %}x{% endblock %}", "{% block %} is not supported"),
    "continue in a filter": ("{% for i in [1] %}{% filter upper %}{% continue %}{% endfilter %}{% endfor %}", "{% continue %} in a {% filter %} block"),
    "break in a set": ("{% for i in [1] %}{% set x %}{% break %}{% endset %}{% endfor %}", "{% break %} in a {% set %} block"),
    "named varargs": ("{% macro f(a) %}{{ varargs }}{% endmacro %}{{ f(1) }}", "varargs"),
    "kwargs": ("{% macro f(a) %}{{ kwargs }}{% endmacro %}{{ f(1) }}", "kwargs"),
    "self": ("{{ self is defined }}", "the name self"),
    "lipsum": ("{{ lipsum is defined }}", "the name lipsum"),
    "unpacked texts": ("{% for a, b in ['xy'] %}{{ a }}{% endfor %}", "not iterable"),
    "slices of ranges": ("{{ range(9)[2:] }}", "a slice of a value of type range"),
    "foreign digits": ("{{ '１２'|int }}", "the digits of"),
    "rounding to tens": ("{{ 1234|round(-2) }}", "precision"),
    "fields in fields": ("{{ '{:>{w}}'.format('a', w=4) }}", "a field in a field"),
    "encode": ("{{ 'a'.encode() }}", "encode"),
    "pprint": ("{{ 'a'|pprint }}", "pprint"),
    "xmlattr": ("{{ {'a': 1}|xmlattr }}", "xmlattr"),
    "a filter by name": ("{{ 'pprint' is filter }}", "pprint"),
    "foreign numerals": ("{{ '一'.isnumeric() }}", "isnumeric"),
    "sameas": ("{{ 'a' is sameas 'a' }}", "sameas"),
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
    "a loop over none": "{% for x in none %}{% endfor %}",
    "a loop over no tools": "{% for x in tools %}{% endfor %}",
    "a loop over a number": "{% for x in 5 %}{% endfor %}",
    "a tuple and a list": "{{ (1, 2) + [3] }}",
    "division by zero": "{{ 1 / 0 }}",
    "division of a float by zero": "{{ 1.5 % 0 }}",
    "a text times a float": "{{ 'a' * 1.0 }}",
    "a text below a number": "{{ 'a' < 1 }}",
    "none below a number": "{{ none < 1 }}",
    "what is undefined below a number": "{{ missing < 1 }}",
    "dicts in order": "{{ {'a': 1} < {'b': 2} }}",
    "a number in a text": "{{ 1 in 'abc' }}",
    "what is undefined in a text": "{{ missing in 'abc' }}",
    "a list in a dict": "{{ [1] in {} }}",
    "a list as a key": "{{ {[1]: 2} }}",
    "a slice by floats": "{% set l = [1] %}{{ l[1.0:] }}",
    "a slice of what is undefined": "{{ missing[1:] }}",
    "the length of a generator": "{{ [1]|map('string')|length }}",
    "a generator and a list": "{{ [1]|map('string') + ['a'] }}",
    "json of a generator": "{{ [1]|map('string')|tojson }}",
    "json of what is undefined": "{{ [missing]|tojson }}",
    "a loop over a namespace": "{% for x in namespace(a=1) %}{% endfor %}",
    "do": "{% do [1].copy() %}",
    "include": "{% include 'x' ignore missing %}",
    "import": "{% import 'x' as y %}",
    "debug": "{{ debug() }}",
    "filters of minijinja": "{{ 'a b'|split }}",
    "tests of minijinja": "{{ 'a' is startingwith 'a' }}",
    "sorting none": "{{ [none, 1]|sort }}",
    "joining none": "{{ none|join(',') }}",
    "too many to format": "{{ '%s'|format(1, 2) }}",
    "a format of none": "{{ '{:>5}'.format(none) }}",
    "replacing by a number": "{{ 'abc'.replace('a', 1) }}",
    "a list of prefixes": "{{ 'abc'.startswith(['a']) }}",
    "indenting a number": "{{ 5|indent }}",
    "an odd text": "{{ 'a' is odd }}",
    "names for dict.get": "{{ {}.get('b', default=1) }}",
    "a plus at the end": "{{ 1 +}}",
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


class Day(datetime.datetime):
    """The day of all recordings."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 12, 34, 56)


def assistant(content, thinking=None, **more):
    return {"role": "assistant", "content": content, **({"reasoning_content": thinking} if thinking else {}), **more}


SAYS = {"role": "system", "content": " Be brief. "}
ASKS = [{"role": "user", "content": c} for c in ("Hi <there>, é", "And 2 + 2?\n", "Why?")]
TOOLS = [{"type": "function", "function": {
    "name": "now", "description": "The time of a place's day.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "A town, or <none>.", "enum": ["Rome", "Oslo"]},
        "count": {"type": "integer", "default": 1}}, "required": ["place"]}}}]
CALL = {"id": "call00001", "type": "function", "function": {"name": "now", "arguments": {"place": "Rome", "count": 2}}}
RESULT = {"role": "tool", "name": "now", "tool_call_id": "call00001", "content": "{\"hour\": 9}"}
# name: messages, variables, add_generation_prompt
CONVERSATIONS = {
    "first": ([SAYS, ASKS[0]], {}, True),
    "without a system": ([ASKS[0]], {}, True),
    "closed": ([SAYS, ASKS[0], assistant("Hello. ")], {}, False),
    "three turns": ([SAYS, ASKS[0], assistant("Hello."), ASKS[1], assistant(" It is 4."), ASKS[2]], {}, True),
    "three thoughts": ([ASKS[0], assistant("Hello.", "He greets.\n\nI greet."), ASKS[1], assistant("It is 4.", "2 + 2"), ASKS[2]], {}, True),
    "closed thoughts": ([SAYS, ASKS[0], assistant("Hello.", "He greets."), ASKS[1], assistant("It is 4.", "2 + 2")], {}, False),
    "tools": ([SAYS, ASKS[0]], {"tools": TOOLS}, True),
    "a call": ([SAYS, ASKS[0], assistant("", "Look.", tool_calls=[CALL]), RESULT], {"tools": TOOLS}, True),
    "a call and more": ([ASKS[0], assistant("", tool_calls=[CALL]), RESULT, assistant("Nine."), ASKS[1]], {"tools": TOOLS}, True),
    "no thinking": ([SAYS, ASKS[0]], {"enable_thinking": False}, True),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]}], {}, True),
}
# What models write for two questions, their end of turn left out, and what it is: content and thinking.
PLAIN = [("Hello.", "Hello.", None), (" It is 4.\n", " It is 4.\n", None)]
THINK = [("<think>\nHe greets.\n\nI greet.\n</think>\n\nHello.", "Hello.", "He greets.\n\nI greet."),
         ("<think>\n\n</think>\n\nIt is 4.", "It is 4.", None)]
OPENED = [("He greets.\n\nI greet.\n</think>\n\nHello.", "Hello.", "He greets.\n\nI greet."),
          ("2 + 2\n</think>\nIt is 4.", "It is 4.", "2 + 2")]
BRACKETS = [("[THINK]He greets.[/THINK]Hello.", "Hello.", "He greets."), ("It is 4.", "It is 4.", None)]
COHERE = [("<|START_THINKING|>He greets.<|END_THINKING|><|START_RESPONSE|>Hello.<|END_RESPONSE|>", "Hello.", "He greets."),
          ("<|START_RESPONSE|>It is 4.<|END_RESPONSE|>", "It is 4.", None)]
RESPONSE = [("<think>He greets.</think><response>Hello.</response>", "Hello.", "He greets."), ("It is 4.", "It is 4.", None)]
CHANNELS = [("<|channel|>analysis<|message|>He greets.<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|return|>", "Hello.", "He greets."),
            ("<|channel|>final<|message|>It is 4.<|return|>", "It is 4.", None)]
STYLES = {"plain": PLAIN, "think": THINK, "opened": OPENED, "brackets": BRACKETS, "cohere": COHERE, "response": RESPONSE, "channels": CHANNELS}
# Architectures with the templates of their models, and how the models write. No template: the file has none.
FAMILIES = [
    ("llama", "llama3", "plain"), ("llama", "mistral", "plain"), ("llama", "r1-distill", "opened"),
    ("cohere2", "command-r7b", "cohere"), ("gemma2", "gemma2", "plain"), ("gemma3", "gemma3", "plain"),
    ("gpt-oss", "gpt-oss", "channels"), ("gptneox", None, "plain"), ("granite", "granite", "response"),
    ("mistral3", "ministral3", "brackets"), ("olmo2", "olmo2", "plain"), ("olmo2", "olmo3-think", "opened"),
    ("phi2", None, "plain"), ("phi3", "phi3", "plain"), ("phi3", "phi4", "plain"), ("phi3", "phi4-mini", "plain"),
    ("qwen2", "qwen2", "plain"), ("qwen3", "qwen3", "think"), ("qwen3", "qwen3-thinking", "opened"),
    ("qwen35", "qwen35", "opened"), ("qwen35moe", "qwen35", "opened"), ("qwen3moe", "qwen3", "think"),
    ("qwen3moe", "qwen3-coder", "plain"), ("smollm3", "smollm3", "think"),
]
# How the models of published templates write, where it is not plain text.
PUBLISHED = {
    "command-a": "cohere", "command-r7b": "cohere", "deepseek-r1-distill-llama": "opened", "gpt-oss": "channels",
    "granite-3.3": "response", "ministral-3-reasoning": "brackets", "olmo-3-think": "opened", "phi-4-reasoning": "think",
    "qwen3": "think", "qwen3-thinking-2507": "opened", "qwen3.5": "opened", "qwen3.6": "opened", "qwq": "opened",
    "smollm3": "think", "smollm3-tools": "think",
}
CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def told(template, conversation):
    """The text, or none where transformers refuses."""
    messages, variables, prompt = json.loads(json.dumps(conversation))
    tools = variables.pop("tools", None)
    try:
        return rendered(template, messages, prompt, tools, **variables)
    except Exception:
        return None


def prompts(template, answers):
    """The prompts of three turns, with answers as the family's template wants them."""
    system = [SAYS] if told(template, ([SAYS, ASKS[0]], {}, True)) else []
    messages, out = [*system], []
    for ask, (_, content, thinking) in zip(ASKS, [*answers, ("", "", None)]):
        messages.append(ask)
        out.append(told(template, (messages, {}, True)))
        if "block['thinking']" in template and thinking:
            # As mistral-common does, and its templates expect.
            content, thinking = [{"type": "thinking", "thinking": thinking}, {"type": "text", "text": content}], None
        messages.append(assistant(content, thinking))
    assert all(out), out
    return {"system": bool(system), "prompts": out}


def families():
    texts, turns = {}, []
    for arch, name, style in FAMILIES:
        template = (HERE / f"families/{name}.jinja").read_text() if name else CHATML
        if name:
            texts[name] = {of: told(template, conversation) for of, conversation in CONVERSATIONS.items()}
        turns.append({"arch": arch, "template": name, "answers": style, **prompts(template, STYLES[style])})
    conversations = {name: dict(zip(("messages", "variables", "prompt"), of)) for name, of in CONVERSATIONS.items()}
    answers = {style: [dict(zip(("written", "content", "thinking"), of)) for of in split] for style, split in STYLES.items()}
    return {"conversations": conversations, "texts": texts, "answers": answers, "turns": turns}


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def published(folders):
    out = {}
    for path in sorted(path for folder in folders for path in pathlib.Path(folder).glob("*.jinja")):
        template = path.read_text()
        of = {name: told(template, conversation) for name, conversation in CONVERSATIONS.items()}
        style = PUBLISHED.get(path.stem, "plain")
        turns = prompts(template, STYLES[style])
        out[sha256(template)] = {
            "name": path.stem, "texts": {name: text and sha256(text) for name, text in of.items()},
            "answers": style, **turns, "prompts": [sha256(text) for text in turns["prompts"]],
        }
    return out


def write(name, value):
    (HERE / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


transformers.utils.chat_template_utils.datetime = Day
if sys.argv[1:]:
    write("published.json", published(sys.argv[1:]))
else:
    write("constructed.json", constructed())
    write("families.json", families())
