//! Templates that eat the machine or make minijinja panic: each is an error, in 512 MB of memory and on a
//! stack of 2 MB.

use crate::{jinja, names, rendered};
use greenroom_jinja::Bound;
use std::process::Command;

/// Templates that are refused, and the bound that they meet; `None` for what has no answer, or takes too many
/// steps.
fn refused() -> Vec<(String, Option<Bound>)> {
    use Bound::*;
    let doubled = |how: &str| {
        format!(
            "{{% set n = namespace(a='a', l=[1]) %}}{{% for i in range(99) %}}{{% set {how} %}}{{% endfor %}}"
        )
    };
    let chain =
        |open: &str, link: &str, close: &str| format!("{{{{ {open}{}{close} }}}}", link.repeat(20_000));
    let nested = |n: usize, set: &str, text: &str| {
        let sets: String = (0..n)
            .map(|i| format!("{{% set s{} %}}{}{{% endset %}}", i + 1, set.replace('#', &i.to_string())))
            .collect();
        format!("{{% set s0 %}}{text}{{% endset %}}{sets}{{{{ s{n} }}}}")
    };
    vec![
        // Output and captures.
        (r#"{% set a = "a"*9000 %}{% for i in range(90000) %}{{a}}{{a}}{{a}}{{a}}{% endfor %}"#.into(), Some(Written)),
        (format!("{{% for i in range(90000) %}}{}{{% endfor %}}", "x".repeat(1000)), Some(Written)),
        ("{% for i in range(1000) %}{{ long }}{% endfor %}".into(), Some(Written)),
        (nested(40, "{{ s# }}{{ s# }}", "0123456789"), Some(Written)),
        ("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) \
          }}{% else %}0123456789{% endif %}{% endmacro %}{{ m(30) }}".into(), Some(Written)),
        ("{% macro m() %}{{ caller() }}{{ caller() \
          }}{% endmacro %}{% for i in range(9000) %}{% call m() %}{{ long }}{% endcall %}{% endfor %}".into(), Some(Written)),
        ("{% filter upper %}{% for i in range(9000) %}{{ long }}{% endfor %}{% endfilter %}".into(), Some(Written)),
        ("{% autoescape 'html' %}{% set a = '<' * n ** 13 %}{{ a }}{{ a }}{% endautoescape %}".into(), Some(Written)),
        // Operators.
        ("{{ [[1]*100000]*100000 }}".into(), Some(Folded)),
        ("{% set n = 100000 %}{{ [[1]*n]*n }}".into(), Some(Work)),
        ("{% set n = 100000 %}{{ [[1]*n]*n == [[1]*n]*n }}".into(), Some(Work)),
        ("{% set n = 100000 %}{% set a = [1]*n %}{% for i in range(n) %}{% if a == a %}{% endif %}{% endfor %}".into(), Some(Work)),
        ("{% set n = 100000 %}{% set a = [1]*n %}{% for i in range(n) %}{% if 2 in a %}{% endif %}{% endfor %}".into(), Some(Work)),
        ("{% for i in range(99999) %}{% if 'y' in long %}{% endif %}{% endfor %}".into(), Some(Work)),
        ("{% for i in range(99999) %}{{ long[999999] }}{% endfor %}".into(), Some(Work)),
        ("{% for i in range(99999) %}{{ long[-i] }}{% endfor %}".into(), Some(Work)),
        ("{% for i in range(99999) %}{% for c in long %}{% break %}{% endfor %}{% endfor %}".into(), Some(Work)),
        ("{% for i in range(99999) %}{% for c in [1] recursive %}{% if c == 1 %}{{ loop(long) \
          }}{% else %}{% break %}{% endif %}{% endfor %}{% endfor %}".into(), Some(Work)),
        ("{{ 'a' * 10 ** 9 }}".into(), Some(Folded)),
        ("{{ 'a' * 90000000 ~ 'a' * 90000000 }}".into(), Some(Folded)),
        ("{{ ['x'] * 10 ** 9 }}".into(), Some(Folded)),
        ("{% set n = 10 ** 7 %}{{ 'a' * n }}".into(), Some(Text)),
        ("{% set n = 10 ** 7 %}{{ [1] * n }}".into(), Some(Made)),
        (doubled("n.a = n.a + n.a"), Some(Made)),
        (doubled("n.a = n.a ~ n.a"), Some(Made)),
        (doubled("n.a = n.a * 2"), Some(Text)),
        (doubled("n.a = n.a[:] ~ n.a[:]"), Some(Work)),
        (doubled("n.l = n.l + n.l"), Some(Made)),
        (doubled("n.l = n.l * 2"), Some(Made)),
        (doubled("n.l = [n.l, n.l]"), Some(Work)),
        (doubled("n.l = {'a': n.l, 'b': n.l}"), Some(Work)),
        (doubled("n.l = (n.l, n.l)"), Some(Work)),
        (doubled("n.l = [n.l]"), Some(Depth)),
        (doubled("n.l = {'a': n.l}"), Some(Depth)),
        (doubled("n.l = dict(a=n.l)"), Some(Depth)),
        (doubled("n.l = n.l|batch(1)"), Some(Depth)),
        ("{% set n = namespace() %}{% for i in range(999) %}{% set n.l = [nope]|map('default', n.l|default(1)) %}{% endfor %}".into(), Some(Depth)),
        (doubled("n.a = n.l ~ n.a ~ n.a"), Some(Made)),
        ("{% set n = namespace(l=1) %}{% for i in range(99999) %}{% set n.l = (n.l, [n.l]|first)|list %}{% endfor %}".into(), Some(Made)),
        ("{% set n = namespace() %}{% set n.n = n %}{{ n }}".into(), None),
        ("{% set n = namespace() %}{% set n.n = [n] %}{{ n }}".into(), None),
        ("{% set n = namespace() %}{% set n.n = namespace(n=n) %}{{ n }}".into(), None),
        ("{% set n = namespace() %}{% set n.n = {n: 1} %}{{ n }}".into(), None),
        ("{% set n = namespace() %}{% for i in range(99999) %}{% set p = n.m %}{% macro m() %}{{ p \
          }}{% endmacro %}{% set n.m = m %}{% endfor %}{{ nope.x }}".into(), None),
        ("{{ list|pprint(attribute=9223372036854775807) }}".into(), Some(Text)),
        ("{% set n = namespace() %}{% for i in range(9) %}{% set n.n = loop %}{% endfor %}".into(), None),
        ("{% set n = namespace() %}{% for i in range(9) %}{% set n.n = [[loop]] %}{% endfor %}".into(), None),
        ("{% for i in range(9) %}{% if loop.changed(loop) %}{% endif %}{% endfor %}".into(), None),
        ("{% set a = namespace() %}{% set b = namespace() %}{% for i in range(99999) %}{% for j in [b.l] %}{% set b.l = dict(a=loop) %}{% endfor %}{% endfor %}".into(), None),
        // Filters, tests, functions, methods.
        ("{{ 'a' | indent(10 ** 15) }}".into(), Some(Width)),
        ("{{ 'a' | indent(width=10 ** 15) }}".into(), Some(Width)),
        ("{{ ['a'] | map('indent', 10 ** 15) | list }}".into(), Some(Width)),
        ("{{ ".to_owned() + &"[".repeat(20) + "1" + &"]".repeat(20) + " | map(*(['map'] * n ** 3)) }}", Some(NestedCalls)),
        ("{% set n = 90000000 %}{{ ([1] * n) | list }}".into(), Some(Made)),
        ("{{ [1] | slice(10 ** 12) | list }}".into(), Some(Width)),
        ("{{ [1] | batch(10 ** 12, 0) | list }}".into(), Some(Width)),
        ("{{ items | tojson(indent=10 ** 9) }}".into(), Some(Width)),
        ("{{ '%0999999999d' | format(1) }}".into(), Some(Width)),
        ("{{ '%*d' | format(999999999, 1) }}".into(), Some(Width)),
        ("{{ '{:>999999999}'.format(1) }}".into(), Some(Width)),
        ("{{ '{:>{}}'.format(1, 999999999) }}".into(), None),
        ("{% set f = '%(a)s' * 1000 %}{{ f | format(a=long) }}".into(), Some(Text)),
        ("{{ long | replace('', long) }}".into(), Some(Text)),
        ("{{ long.replace('x', long) }}".into(), Some(Text)),
        ("{{ range(99999) | join(long) }}".into(), Some(Text)),
        ("{{ long.join(range(99999)) }}".into(), Some(Text)),
        ("{{ long | join(long) }}".into(), Some(Text)),
        ("{% set l = ('a\n' * n ** 10) %}{{ l | indent(10000) }}".into(), Some(Text)),
        ("{{ long | trim(long) }}".into(), Some(Work)),
        ("{{ long.strip(long) }}".into(), Some(Work)),
        ("{% set l = ['abcdefghij'] * n ** 10 %}{{ l | sum(start='') }}".into(), Some(Work)),
        ("{% set l = [[1]] * 99999 %}{{ l | sum(start=[]) }}".into(), Some(Work)),
        ("{% set l = [range(1000)|list] * 1000 %}{{ l | sort | length }}".into(), Some(Work)),
        ("{% for i in range(99999) %}{{ range(99999) | sort | length }}{% endfor %}".into(), Some(Work)),
        ("{% for i in range(99999) %}{{ range(99999) | length }}{% endfor %}".into(), Some(Work)),
        ("{% for i in range(99999) %}{% set x = long | list %}{% endfor %}".into(), Some(Work)),
        ("{% for i in range(99999) %}{% set x = long | split('') %}{% endfor %}".into(), Some(Work)),
        ("{% for i in range(99999) %}{% set x = long | upper %}{% endfor %}".into(), Some(Work)),
        ("{{ range(10 ** 9) }}".into(), None),
        ("{{ range(9223372036854775807, -9223372036854775807, -1) }}".into(), None),
        ("{{ range(5, 1, -9223372036854775808) }}".into(), None),
        ("{% set n = namespace(d={}) %}{% for i in range(99999) %}{% set n.d = n.d | chain({i: i}) \
          %}{% endfor %}{{ n.d }}".into(), Some(Work)),
        ("{% set n = namespace(d=[]) %}{% for i in range(99999) %}{% set n.d = n.d | chain([i]) %}{% endfor %}{{ n.d | length }}".into(), Some(Work)),
        ("{% set n = namespace(d=[]) %}{% for i in range(99999) %}{% set n.d = n.d + [i] %}{% endfor %}{{ \
          n.d | length }}".into(), Some(Made)),
        ("{% set n = namespace(d=[1]) %}{% for i in range(99999) %}{% set n.d = n.d | reverse %}{% endfor %}{{ n.d | length }}{{ 1/'' }}".into(), None),
        ("{{ 5 is divisibleby 0 }}".into(), None),
        ("{{ 5 is divisibleby(false) }}".into(), None),
        ("{{ [5] | select('divisibleby', 0) | list }}".into(), None),
        ("{{ debug() }}".into(), None),
        ("{% for i in range(9) %}{{ loop.cycle() }}{% endfor %}".into(), None),
        ("{% for i in list %}{% with x = n %}{% break %}{% endwith %}{% endfor %}".into(), None),
        ("{% for i in list %}{% with x = n %}{% continue %}{% endwith %}{% endfor %}".into(), None),
        ("{% for i in list %}{% set x %}{% break %}{% endset %}{% endfor %}".into(), None),
        ("{% for i in list %}{% autoescape 'html' %}{% break %}{% endautoescape %}{% endfor %}".into(), None),
        ("{% for i in list %}{% macro m() %}{% break %}{% endmacro %}{{ m() }}{% endfor %}".into(), None),
        ("{% break %}".into(), None),
        // Loops begun again from another program, or by another name.
        ("{% for i in list recursive %}{% block b %}{% if ns.x %}{{ loop(list) \
          }}{% set ns.x = ns.y ~ ns.y %}{% set ns.y = ns.y ~ ns.y %}{% endif %}{% endblock %}{% endfor %}".into(), None),
        ("{% for i in list recursive %}{% block b %}{{ 'a' ~ loop(list) }}{% endblock %}{% endfor %}".into(), None),
        ("{% for i in list recursive %}{% block b %}{% for j in list if loop(list) %}{% endfor %}{% endblock %}{% endfor %}".into(), None),
        ("{% for i in list recursive %}{% macro m() %}{{ loop(list) }}{% endmacro %}{{ m() }}{% endfor %}".into(), None),
        ("{% macro m(f) %}{{ f(list) }}{% endmacro %}{% for i in list recursive %}{{ m(loop) }}{% endfor %}".into(), None),
        ("{% macro m(loop) %}{% for i in list %}{{ 'a' ~ loop(list) \
          }}{% endfor %}{% endmacro %}{% for i in list recursive %}{{ m(loop) }}{% endfor %}".into(), None),
        ("{% for i in list recursive %}{% set f = loop %}{% block b %}{{ f(list) }}{% endblock %}{% endfor %}".into(), None),
        ("{% for i in list recursive %}{% set f = loop %}{% block b %}{% for k in list %}{% set loop = f %}{{ 'a' ~ loop(list) }}{% endfor %}{% endblock %}{% endfor %}".into(), None),
        // Steps and frames.
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".into(), None),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".into(), None),
        ("{% macro m(x) %}{{ m([[[[x]]]]) }}{% endmacro %}{{ m(1) }}".into(), Some(Depth)),
        ("{% macro m() %}{% for a in [1] %}{% with %}{{ {'m': m}.m() \
          }}{% endwith %}{% endfor %}{% endmacro %}{{ m() }}".into(), Some(NestedCalls)),
        ("{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}".into(), None),
        ("{% block a %}{{ self.a() }}{% endblock %}".into(), None),
        ("{% block a %}{% set x = self.a() %}{% endblock %}".into(), None),
        ("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".into(), None),
        ("{% for x in [1] recursive %}{% set y = loop([1]) %}{% endfor %}".into(), None),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% macro m() %}{{ i \
          }}{% endmacro %}{% endfor %}{% endfor %}".into(), Some(Made)),
        // Code.
        (chain("1", "+1", ""), Some(Tokens)),
        (chain("1", "|abs", ""), Some(Tokens)),
        (chain("1", ".a", ""), Some(Tokens)),
        (chain("", "not ", "1"), Some(Tokens)),
        (chain("", "-", "1"), Some(Tokens)),
        (chain("", "(", ""), Some(Tokens)),
        ("{% if 1 %}".repeat(20_000), None),
        (format!("{{% if 0 %}}{}", "{% elif 0 %}".repeat(20_000)), Some(Branches)),
        ("{{ n }}".repeat(500_000), Some(Code)),
        ("{% block b required %} {% endblock %}".into(), None),
    ]
}

/// Templates as deep as a parser takes them, or deeper: none overflows the stack.
fn deep() -> Vec<String> {
    let mut all = Vec::new();
    for n in [120, 480, 960, 1_990] {
        for link in [
            "+1",
            "*1",
            "~1",
            ".a",
            "[0]",
            "[:]",
            "|abs",
            "(1)",
            ".a(1)",
            " and 1",
            " == 1",
            " if 1 else 1",
            " is odd",
            " in [1",
            "[[",
            "((",
        ] {
            all.push(format!("{{{{ n{} }}}}", link.repeat(n)));
        }
        for link in ["not ", "-", "+", "(", "[", "{1:", "[-", "n(", "n|default(", "n if not "] {
            let close = link
                .trim_start_matches(char::is_alphanumeric)
                .replace(['-', '|', ' ', ':', '1'], "")
                .replace('(', ")")
                .replace('[', "]")
                .replace('{', "}");
            all.push(format!(
                "{{{{ {}1{} }}}}",
                link.repeat(n),
                close.chars().filter(|c| !c.is_alphanumeric()).collect::<String>().repeat(n)
            ));
        }
        all.push(format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(n)));
        for (open, close) in [
            ("if 1", "endif"),
            ("for i in [1]", "endfor"),
            ("with", "endwith"),
            ("set x", "endset"),
            ("filter upper", "endfilter"),
            ("macro m()", "endmacro"),
            ("block #", "endblock"),
        ] {
            let opened: String =
                (0..n).map(|i| format!("{{% {} %}}", open.replace('#', &format!("b{i}")))).collect();
            all.push(opened + &format!("{{% {close} %}}").repeat(n));
        }
    }
    all
}

#[test]
fn what_is_hostile_is_refused() {
    let program = std::env::current_exe().unwrap();
    let script = "ulimit -v 524288; ulimit -s 8192; exec \"$0\" --exact hostile::in_a_small_machine \
                  --ignored --nocapture";
    let output =
        Command::new("sh").args(["-c", script]).arg(program).env("RUST_BACKTRACE", "0").output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{:?}: {said}", output.status);
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
#[ignore = "run within limits by another test: cargo test -p greenroom-jinja what_is_hostile_is_refused"]
fn in_a_small_machine() {
    let all = || {
        let mut wrong = Vec::new();
        for (source, bound) in refused() {
            let begun = std::time::Instant::now();
            eprint!("{:.80} … ", source.replace('\n', " "));
            match rendered(&source) {
                Ok(text) => wrong.push(format!("{source:.200} gives {} bytes", text.len())),
                Err(error) => {
                    eprintln!("{} ms: {:.200}", begun.elapsed().as_millis(), error.to_string());
                    if Bound::of(&error) != bound || error.to_string().len() > 2_000 {
                        wrong.push(format!("{source:.200} meets {error:.200}"));
                    }
                }
            }
        }
        for source in deep() {
            eprintln!("{source:.80} … {:.200}", rendered(&source).unwrap_or_else(|error| error.to_string()));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(all).unwrap().join().unwrap();
}

/// The same in an expression, where there is nothing to write to.
#[test]
fn expressions_are_bounded_too() {
    for source in [
        "'a' * n ** 20",
        "[[1] * n ** 10] * n ** 10 == [[1] * n ** 10] * n ** 10",
        "n is divisibleby 0",
        "range(n ** 30)",
        "''[::-1] ~ [] | first",
    ] {
        let jinja = jinja();
        let value = jinja.expression(source).and_then(|expression| expression.value(names()));
        assert!(value.is_err(), "{source}: {value:?}");
    }
}

/// Operations that make minijinja panic or overflow have an answer.
#[test]
fn what_makes_minijinja_panic_has_an_answer() {
    for (source, text) in [
        ("{{ ''[::-1] }}|{{ [][::-1]|list }}", "|[]"),
        ("{{ 'abc'[0:2:-1] }}|{{ list[0:2:-1] }}", "|[]"),
        ("{{ 'abc'[::-9223372036854775808] }}", "c"),
        ("{{ 'abc'[9223372036854775807:-9223372036854775808:-1] }}", "cba"),
        ("{{ (-170141183460469231731687303715884105727 - 1) is divisibleby(-1) }}", "True"),
    ] {
        assert_eq!(rendered(source).map_err(|error| error.to_string()), Ok(text.to_owned()), "{source}");
    }
}
