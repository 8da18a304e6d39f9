//! Random templates of all the language's pieces: no panic, no end that does not come, no output beyond the
//! bound.

use crate::rendered;
use greenroom_jinja::bounds::MAX_WRITTEN;
use proptest::prelude::*;

fn one_of(words: &'static [&'static str]) -> impl Strategy<Value = String> + Clone {
    proptest::sample::select(words).prop_map(str::to_owned)
}

fn leaf() -> impl Strategy<Value = String> + Clone {
    one_of(&[
        "n",
        "text",
        "list",
        "empty",
        "map",
        "items",
        "none",
        "long",
        "nope",
        "ns",
        "ns.x",
        "ns.y",
        "loop",
        "loop.index",
        "i",
        "x",
        "m",
        "caller",
        "range",
        "true",
        "0",
        "1",
        "-1",
        "2.5",
        "10 ** 3",
        "10 ** 9",
        "9223372036854775807",
        "-9223372036854775808",
        "170141183460469231731687303715884105727",
        "1e308",
        "''",
        "'a'",
        "'é\n'",
        "'%s %5d'",
        "'{} {:>9}'",
        "[]",
        "{}",
        "(1, 'a')",
        "'attribute'",
        "'upper'",
        "'odd'",
    ])
}

fn expression() -> impl Strategy<Value = String> + Clone {
    const BINARY: &[&str] = &[
        "+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and",
        "or",
    ];
    const FILTERS: &[&str] = &[
        "safe",
        "escape",
        "lower",
        "upper",
        "title",
        "capitalize",
        "replace",
        "length",
        "dictsort",
        "items",
        "reverse",
        "trim",
        "join",
        "split",
        "lines",
        "default",
        "round",
        "abs",
        "int",
        "float",
        "attr",
        "first",
        "last",
        "min",
        "max",
        "sort",
        "list",
        "string",
        "bool",
        "batch",
        "slice",
        "sum",
        "indent",
        "select",
        "reject",
        "selectattr",
        "rejectattr",
        "map",
        "groupby",
        "unique",
        "chain",
        "zip",
        "pprint",
        "format",
        "tojson",
    ];
    const TESTS: &[&str] = &[
        "undefined",
        "defined",
        "none",
        "safe",
        "boolean",
        "odd",
        "even",
        "divisibleby",
        "number",
        "integer",
        "float",
        "string",
        "sequence",
        "iterable",
        "mapping",
        "startingwith",
        "endingwith",
        "lower",
        "upper",
        "sameas",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "in",
        "true",
        "false",
        "filter",
        "test",
    ];
    const METHODS: &[&str] = &[
        "upper",
        "split",
        "strip",
        "replace",
        "join",
        "format",
        "count",
        "find",
        "startswith",
        "splitlines",
        "items",
        "keys",
        "values",
        "get",
        "cycle",
        "changed",
        "title",
        "x",
        "isdigit",
    ];
    const FUNCTIONS: &[&str] = &["range", "dict", "namespace", "m", "loop", "caller", "nope"];
    leaf().prop_recursive(4, 24, 3, |inner| {
        let args = proptest::collection::vec(
            prop_oneof![4 => inner.clone(), 1 => (one_of(&["attribute", "reverse", "default", "width", "start", "indent", "x"]), inner.clone()).prop_map(|(k, v)| format!("{k}={v}")), 1 => inner.clone().prop_map(|v| format!("*{v}")), 1 => inner.clone().prop_map(|v| format!("**{v}"))],
            0..3,
        );
        let args = args.prop_map(|args| args.join(", "));
        prop_oneof![
            (inner.clone(), one_of(BINARY), inner.clone()).prop_map(|(a, op, b)| format!("({a} {op} {b})")),
            (inner.clone(), one_of(FILTERS), args.clone()).prop_map(|(a, name, args)| format!("({a})|{name}({args})")),
            (inner.clone(), one_of(TESTS), args.clone()).prop_map(|(a, name, args)| format!("(({a}) is {name}({args}))")),
            (inner.clone(), one_of(METHODS), args.clone()).prop_map(|(a, name, args)| format!("({a}).{name}({args})")),
            (one_of(FUNCTIONS), args).prop_map(|(name, args)| format!("{name}({args})")),
            proptest::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(", "))),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}, {b})")),
            (inner.clone(), inner.clone()).prop_map(|(k, v)| format!("{{{k}: {v}}}")),
            (inner.clone(), inner.clone()).prop_map(|(a, key)| format!("({a})[{key}]")),
            (inner.clone(), inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, i, j, k)| format!("({a})[{i}:{j}:{k}]")),
            (inner.clone(), inner.clone()).prop_map(|(a, i)| format!("({a})[::{i}]")),
            (inner.clone(), one_of(&["a", "x", "k", "length", "list", "grouper"])).prop_map(|(a, name)| format!("({a}).{name}")),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a} if {b} else {c})")),
            (one_of(&["not ", "-"]), inner).prop_map(|(op, a)| format!("({op}{a})")),
        ]
    })
}

fn body() -> impl Strategy<Value = String> {
    let e = expression;
    let statement = prop_oneof![
        Just("text ".to_owned()),
        e().prop_map(|a| format!("{{{{ {a} }}}}")),
        e().prop_map(|a| format!("{{% set x = {a} %}}")),
        e().prop_map(|a| format!("{{% set ns.x = {a} %}}")),
        one_of(&[
            "ns.y ~ ns.y",
            "ns.x + ns.x",
            "ns.x * 2",
            "[ns.x, ns.x]",
            "[ns.x]",
            "{1: ns.x}",
            "ns.x|list",
            "ns.x|batch(2)|list",
            "ns.x|string"
        ])
        .prop_map(|a| format!("{{% set ns.x = {a} %}}{{% set ns.y = {a} %}}")),
        one_of(&[
            "{{ m(i, x) }}",
            "{% call m(1, n) %}{{ x }}{% endcall %}",
            "{{ loop(list) }}",
            "{{ 'a' ~ loop(ns.x) }}",
            "{{ m(loop, n) }}",
            "{{ i(list) }}",
            "{% set x = loop %}",
            "{% set loop = i %}",
            "{{ self.b() }}",
            "{{ caller() }}",
            "{% break %}",
            "{% continue %}"
        ]),
    ];
    statement.prop_recursive(4, 24, 4, |inner| {
        let body = proptest::collection::vec(inner, 1..4).prop_map(|parts| parts.concat());
        prop_oneof![
            (
                one_of(&[
                    "range(3)",
                    "range(99999)",
                    "list",
                    "text",
                    "long",
                    "map",
                    "ns.x",
                    "items",
                    "[loop]"
                ]),
                one_of(&["", " recursive"]),
                body.clone()
            )
                .prop_map(|(over, how, body)| format!("{{% for i in {over}{how} %}}{body}{{% endfor %}}")),
            (expression(), body.clone()).prop_map(|(over, body)| format!(
                "{{% for i in {over} if i %}}{body}{{% else %}}-{{% endfor %}}"
            )),
            (expression(), body.clone()).prop_map(|(a, body)| format!("{{% if {a} %}}{body}{{% endif %}}")),
            body.clone().prop_map(|body| format!("{{% set x %}}{body}{{% endset %}}{{{{ x }}}}")),
            body.clone().prop_map(|body| format!("{{% filter upper %}}{body}{{% endfilter %}}")),
            body.clone().prop_map(|body| format!("{{% macro m(i, x) %}}{body}{{% endmacro %}}")),
            (expression(), body.clone())
                .prop_map(|(a, body)| format!("{{% with x = {a} %}}{body}{{% endwith %}}")),
            (one_of(&["'html'", "'json'", "'none'"]), body.clone())
                .prop_map(|(how, body)| format!("{{% autoescape {how} %}}{body}{{% endautoescape %}}")),
            body.prop_map(|body| format!("{{% block b %}}{body}{{% endblock %}}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_template_gives_a_text_or_an_error(body in body()) {
        let source = format!("{{% set ns = namespace(x=[1], y='a') %}}{{% set x = 'ab' %}}{{% macro m(i, x) \
                              %}}{{{{ i }}}}{{% endmacro %}}{body}");
        match rendered(&source) {
            Ok(text) => prop_assert!(text.len() <= MAX_WRITTEN),
            Err(error) => {
                let said = error.to_string();
                prop_assert!(said.len() < 10_000_000 && !said.contains("please report it"), "{source}: {said}");
            }
        }
    }

    #[test]
    fn an_expression_gives_a_value_or_an_error(expression in expression()) {
        let source = format!("{{% set ns = namespace(x=[1], y='a') %}}{{% set i = 1 %}}{{% set x = 'ab' \
                              %}}{{{{ {expression} }}}}");
        if let Err(error) = rendered(&source) {
            prop_assert!(!error.to_string().contains("please report it"), "{source}: {error}");
        }
    }
}
