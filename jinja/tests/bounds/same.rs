//! A template within bounds gives what minijinja alone gives: the text, or the error with its line and range.

use crate::{jinja, names, rendered};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};

fn alone() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().unwrap_or_default());
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_debug(true);
    env
}

/// Everything in an error. For an index that does not exist, only the range.
fn said(error: &Error) -> String {
    let detail =
        error.detail().filter(|detail| error.kind() != ErrorKind::UndefinedError || !detail.contains("]`"));
    let kind = (error.kind(), detail, error.line(), error.range());
    let cause = std::error::Error::source(error).map(ToString::to_string);
    format!("{kind:?} {cause:?} {:?}", error.template_source())
}

pub(crate) const EXPRESSIONS: &[&str] = &[
    "n + 1",
    "n - 1 * 2",
    "7 // 2",
    "-7 // 2",
    "7 % 3",
    "2 ** 10",
    "2 ** -1",
    "n ** 2",
    "n ** -2",
    "n ** 0.5",
    "(n / 2) ** 3",
    "(n * 1.0) ** -2",
    "(n - n) ** -1",
    "(n - n) ** 0",
    "(n - n) ** -0.5",
    "n ** 200",
    "-n ** 0.5",
    "true ** n",
    "n ** true",
    "n ** 'a'",
    "1 / 3",
    "10 / 2",
    "-n",
    "not n",
    "1e3",
    "0.1 + 0.2",
    "170141183460469231731687303715884105727 + 1",
    "170141183460469231731687303715884105727",
    "'a' + 'b'",
    "'a' + 1",
    "'a' ~ 1 ~ none ~ list ~ map",
    "'ab' * 3",
    "3 * 'ab'",
    "list * 2",
    "2 * list",
    "(1, 2) * 2",
    "'a' * -1",
    "'a' * 1.5",
    "n * 1.5",
    "list + [4]",
    "list + list",
    "(list + [4]) is sequence",
    "(list + [4])[0]",
    "(list + [4])[-1]",
    "(1, 2) + (3,)",
    "(1, 2) + [3]",
    "list[0]",
    "list[-1]",
    "list[7]",
    "list[n]",
    "text[0]",
    "text[-1]",
    "text[100]",
    "text[n]",
    "map.a[1]",
    "map['a']",
    "map[text]",
    "list[1:]",
    "list[:-1]",
    "list[::2]",
    "list[::-1]",
    "list[2:0:-1]",
    "list[5:1:-1]",
    "text[4:7]",
    "text[::-1]",
    "text[-3:]",
    "(1, 2, 3)[1:]",
    "(1, 2, 3)[::-1]",
    "none[1:]",
    "n[1:]",
    "nope[1:]",
    "list[::0]",
    "list['a':]",
    "(list[1:])|length",
    "list[1:] is sequence",
    "1 < 2 < 3",
    "3 > 2 > 2",
    "n == 3",
    "n != 3",
    "n in list",
    "n not in list",
    "'a' in map",
    "'Ann' in text",
    "3 in text",
    "list == [3, 1, 2]",
    "list < [4]",
    "map == {'a': [1, 2], 'b': 1}",
    "(1, 2) == [1, 2]",
    "nope == 1",
    "1 == nope",
    "nope in list",
    "1 in nope",
    "nope ~ 1",
    "nope + 1",
    "n if n > 2 else 0",
    "n if n > 5",
    "[n, [n], (n, n), {'k': n}]",
    "{'a': n, n: 'b'}",
    "[]",
    "{}",
    "()",
    "[1, 2] and text",
    "0 or text",
    "text|upper",
    "text|lower|title",
    "text|replace('n', 'mm')",
    "text|replace('', '-')",
    "text|length",
    "list|length",
    "map|length",
    "list|sort",
    "list|sort(reverse=true)",
    "items|sort(attribute='v')|map(attribute='k')|join(', ')",
    "list|join",
    "list|join('-')",
    "text|join('.')",
    "map|items",
    "map|items|list",
    "map|dictsort",
    "list|reverse",
    "list|reverse|list",
    "text|reverse",
    "text|trim('An')",
    "text|split",
    "text|split('n')",
    "text|split(' ', 1)",
    "(text|split)[-1]",
    "'a\nb'|lines",
    "nope|default('d')",
    "nope|default",
    "none|default('d', true)",
    "2.345|round(1)",
    "2.5|round",
    "-3|abs",
    "'12'|int",
    "'x'|int(default=5)",
    "'1.5'|float",
    "map|attr('a')",
    "list|first",
    "list|last",
    "list|min",
    "list|max",
    "list|list",
    "text|list",
    "n|string",
    "n|bool",
    "list|batch(2)",
    "list|batch(2, 0)",
    "list|slice(2)",
    "list|sum",
    "items|sum(attribute='v')",
    "'a\nb'|indent(2)",
    "'a\nb'|indent(2, first=true)",
    "list|select('odd')",
    "list|reject('odd')",
    "items|selectattr('k', 'equalto', 'x')|list",
    "items|rejectattr('v', 'gt', 1)|list",
    "list|map('string')|list",
    "items|map(attribute='q', default=0)|list",
    "items|groupby('k')",
    "items|groupby('k')|map(attribute='list')|list",
    "(items|groupby('k'))[0].grouper",
    "(items|groupby('k')|first).list|length",
    "[1, 1, 2]|unique",
    "list|chain([4])",
    "list|chain([4])|length",
    "map|chain({'c': 3})",
    "(map|chain({'c': 3})).c",
    "map|chain({'c': 3})|length",
    "list|chain('ab')",
    "list|chain('ab')|list",
    "list|zip('abc')",
    "list|zip('abc')|list",
    "map|pprint",
    "'%s is %d' | format(text, n)",
    "'%05.1f|%-5s|'|format(2.25, 'a')",
    "map|tojson",
    "items|tojson(indent=2)",
    "'<a>'|escape",
    "'<a>'|safe",
    "'<a>'|e|upper",
    "text|nope",
    "text is nope",
    "n|upper",
    "list|upper",
    "n is odd",
    "n is even",
    "n is divisibleby 3",
    "n is divisibleby(2)",
    "2.5 is divisibleby 0.5",
    "n is number",
    "text is string",
    "list is sequence",
    "list is iterable",
    "map is mapping",
    "nope is defined",
    "nope is undefined",
    "none is none",
    "text is startingwith('Ann')",
    "n is in list",
    "n is sameas 3",
    "n is eq 3",
    "n is gt(2)",
    "'upper' is filter",
    "range(3)",
    "range(3)|list",
    "range(2, 8, 3)|list",
    "range(3, 0, -1)|list",
    "range(3)|length",
    "range(10)[4]",
    "range(10)[-1]",
    "range(3) is sequence",
    "range(1000000)",
    "range(0, 5, 0)",
    "range(1, 2, 3, 4)",
    "range('a')",
    "dict(a=1, b=2)",
    "dict(map, c=3)",
    "namespace(a=1).a",
    "nope()",
    "n()",
    "nope.a",
    "map.nope",
    "map.nope.a",
    "map.nope()",
    "text.nope()",
    "text.upper()",
    "text.split()",
    "text.split(' ')[-1]",
    "text.replace('n', 'm')",
    "text.startswith('Ann')",
    "text.strip('An')",
    "', '.join(['a', 'b'])",
    "text.find('B')",
    "text.count('n')",
    "map.items()",
    "map.keys()|list",
    "map.values()|list",
    "map.get('a')",
    "map.get('z', 1)",
    "'{} {:>5}'.format(text, n)",
    "list.count(1)",
    "text.title().upper()",
    "'a'.upper(1)",
    "text.splitlines()",
    "list|map('nope')",
    "list|select('nope')",
    "n|int(1, 2, 3, 4)",
    "text|join('-', attribute='x')",
    "[[1, [2, [3]]]]",
    "list|batch(0)",
    "5|indent",
    "{'f': range}.f(3)|list",
    "items|map(attribute='k')|unique|list",
    "(range(5)|select('even'))|sum",
    "'x'.join(text)",
    "map|list",
    "map|first",
    "map|reverse|list",
    "(map|items)[0]",
    "items[0]['k'] ~ items[-1].v",
    "text|replace('n', text|upper)",
    "list|string|length",
    "range(*list)|list",
    "dict(**map)",
];

const TEMPLATES: &[&str] = &[
    "",
    "plain",
    "a\n{% if n %}\nb\n{% endif %}\nc",
    "{# c #}x",
    "{% raw %}{{ n }}{% endraw %}",
    "{{ '{{ n }}' }}",
    "{% for x in list %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for x in list if x > 1 %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in empty %}x{% else %}none{% endfor %}",
    "{% for k, v in map|items %}{{ k }}={{ v }};{% endfor %}",
    "{% for a, b in list %}{% endfor %}",
    "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x > 4 %}{% break %}{% endif %}{{ x \
     }}{% endfor %}",
    "{% for x in list %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for x in list %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for c in text %}[{{ c }}]{% endfor %}",
    "{% for k in map %}{{ k }}{% endfor %}",
    "{% for x in n %}{% endfor %}",
    "{% for x in nope %}{% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x \
     }}{% endif %}{% endfor %}",
    "{% for x in [1, [2]] recursive %}{% set s = loop(x) if x is iterable else x %}<{{ s }}>{% endfor %}",
    "{{ loop(1) }}",
    "{% set x = n + 1 %}{{ x }}",
    "{% set a, b = (1, 2) %}{{ a }}{{ b }}",
    "{% set a, b = list %}",
    "{% set s %}<{{ n }}>{% endset %}{{ s }}{{ s|length }}",
    "{% set s | upper %}a{{ text }}{% endset %}{{ s }}",
    "{% set ns = namespace(x=0) %}{% for i in list %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(l=[]) %}{% for i in range(40) %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l \
     }}{{ ns.l|length }}{{ ns.l[-1] }}{{ ns }}",
    "{% set n.x = 1 %}",
    "{% set nope.x = 1 %}",
    "{% with a = 1, b = a %}{{ b }}{% endwith %}{{ a is defined }}",
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, b=3) }}{{ m(a=5) }}{{ m.name }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m() }}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}{{ n }}{% endcall %}",
    "{% macro m() %}{% for i in list %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(x) m() %}<{{ x \
     }}>{% endcall %}",
    "{% macro f(i) %}{{ i }}{% if i > 0 %}{{ f(i - 1) }}{% endif %}{% endmacro %}{{ f(20) }}",
    "{% for i in list %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% filter upper %}a{{ text }}{% endfilter %}",
    "{% autoescape 'html' %}<b>{{ '<a>' }}{{ '<a>'|safe }}{{ list }}{% endautoescape %}",
    "{% autoescape 'json' %}<{{ map }}{{ 'a' }}{{ '<'|safe }}{% endautoescape %}",
    "{% autoescape true %}{{ ['<']|join('>') }}{{ '<'|replace('<', '&') }}{% set s %}<{{ '<' \
     }}{% endset %}{{ s }}{% endautoescape %}",
    "{% autoescape 'x' %}{% endautoescape %}",
    "{% block a %}x{{ n }}{% block b %}y{% endblock %}{% endblock %}{{ self.b() }}",
    "{{ super() }}",
    "{{ self.nope() }}",
    "{% include 'x' %}",
    "{% include ['x', 'y'] ignore missing %}z",
    "{% extends 'x' %}",
    "{% import 'x' as y %}",
    "{% from 'x' import y %}",
    "{% do text.upper() %}",
    "{% if n %}",
    "{{ n",
    "{{ n }",
    "{% for %}",
    "{% nope %}",
    "{{ 1 + }}",
    "{{ a b }}",
    "{% endfor %}",
    "{{ 'x }}",
    "{{ [1, }}",
    "line\nline\n{{ nope.x }}\n",
    "{%- if n -%}  a  {%- endif -%}  b",
    "{{- n -}}  x",
    "{{ n|default(nope) }}",
    "{{ nope|upper }}",
    "{{ map.a.b.c }}",
    "{{ items[9].k }}",
    "{{ items[n].k }}",
    "{{ items[-9].k }}",
    "{{ (list + [1]).k.l }}",
    "{% if nope %}{% endif %}",
    "{{ not nope }}",
    "{{ nope and 1 }}",
    "{{ nope == nope }}",
    "{{ -text }}",
    "{{ loop.index }}",
    "{% set x = loop %}",
    "{% for x in list %}{% set outer = loop %}{% for y in list %}{{ outer.index }}{{ loop.index }} \
     {% endfor %}{% endfor %}",
    "{{ long|length }}{{ long }}",
    "{% for m in items %}{{ '<|' + m['k'] + '|>' + '\n\
     ' + (m.v|string) + '<|end|>' \
     }}{% if not loop.last and items[loop.index].v == 1 %}!{% endif %}{% endfor %}",
    "{% set d = {'x': 1, 'y': [1, 2]} %}{% for k in d %}{{ k }}{{ d[k] }}{% endfor %}{{ d.items()|list }}",
    "{{ items|map(attribute='k')|map('upper')|join }}",
    "{% set x = namespace() %}{% set x.a = 1 %}{{ x.a }}{{ x.b is defined }}",
];

#[test]
fn what_is_within_bounds_is_what_minijinja_gives() {
    let expressions = EXPRESSIONS.iter().map(|expression| format!("a\n{{{{ {expression} }}}}"));
    for source in expressions.chain(TEMPLATES.iter().map(ToString::to_string)) {
        let ours = rendered(&source).map_err(|error| said(&error));
        let theirs = std::panic::catch_unwind(|| {
            let env = alone();
            let template = env.template_from_named_str("t", &source)?;
            template.render(names())
        });
        let theirs = theirs.unwrap_or_else(|_| panic!("minijinja panics at {source}"));
        assert_eq!(ours, theirs.map_err(|error| said(&error)), "{source}");
    }
}

#[test]
fn expressions_have_the_values_that_they_have() {
    for source in EXPRESSIONS {
        let jinja = jinja();
        let shown = |value: minijinja::Value| format!("{value:?} {} {:?}", value.kind(), value.len());
        let ours = jinja.expression(source).and_then(|expression| expression.value(names()));
        let env = alone();
        let theirs = env.compile_expression(source).and_then(|expression| expression.eval(names()));
        // A lazy list shows nothing of what is in it.
        let lazy = theirs.as_ref().is_ok_and(|value| format!("{value:?}").contains("<iterator>"));
        if !lazy {
            assert_eq!(
                ours.map(shown).map_err(|e| said(&e)),
                theirs.map(shown).map_err(|e| said(&e)),
                "{source}"
            );
        }
        let named = jinja.expression(source).map(|e| e.names()).ok();
        let theirs = env.compile_expression(source).ok().map(|e| {
            // A function of the environment is no name of the context.
            let is_function = |name: &String| env.globals().any(|(function, _)| function == name);
            let all = e.undeclared_variables(false).into_iter();
            let mut names: Vec<String> = all.filter(|name| !is_function(name)).collect();
            names.sort();
            names
        });
        // minijinja passes over what is sliced.
        if source.contains('[') && source.contains(':') {
            let named = named.unwrap_or_default();
            assert!(theirs.into_iter().flatten().all(|name| named.contains(&name)), "{source}: {named:?}");
        } else {
            assert_eq!(named, theirs, "{source}");
        }
    }
}

#[test]
fn what_is_sliced_is_named() {
    let jinja = jinja();
    assert_eq!(jinja.expression("(a ~ b)[c:d]").unwrap().names(), ["a", "b", "c", "d"]);
    let text =
        "{% for x in a[1:] %}{{ x[:2] }}{{ loop.index }}{% endfor %}{% set y = 1 %}{{ y }}{{ (b + 1)[:c] }}";
    assert_eq!(jinja.template("t", text).unwrap().names(), ["a", "b", "c"]);
}
