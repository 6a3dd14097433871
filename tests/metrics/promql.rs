//! Evaluates expressions of Prometheus over two scrapes: the part of its language that the alerts use.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

/// Time between the two scrapes, in seconds.
const INTERVAL: f64 = 300.0;

type Labels = BTreeMap<String, String>;

/// Each series with its value now. A series without labels but its name is possible; a scalar is its own case.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Scalar(f64),
    Vector(Vec<(Labels, f64)>),
}

/// One series at both scrapes.
#[derive(Clone, Debug)]
struct Series {
    labels: Labels,
    before: f64,
    now: f64,
}

/// The series that Prometheus has scraped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scraped(Vec<Series>);

fn labels(text: &str) -> Labels {
    let label = Regex::new(r#"([a-z_]+)="([^"]*)""#).unwrap();
    label
        .captures_iter(text)
        .map(|found| (found[1].to_owned(), found[2].to_owned()))
        .collect()
}

impl Scraped {
    /// Adds the page of a target. Its counters were all 0 at the scrape before.
    pub(crate) fn with(mut self, job: &str, instance: &str, page: &str) -> Self {
        for line in page.lines().filter(|line| !line.is_empty()) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, rest) = series.split_once('{').unwrap_or((series, ""));
            let mut labels = labels(rest);
            for (key, value) in [("__name__", name), ("job", job), ("instance", instance)] {
                labels.insert(key.to_owned(), value.to_owned());
            }
            let now = value.parse().unwrap();
            let before = if name.ends_with("_total") { 0.0 } else { now };
            self.0.push(Series { labels, before, now });
        }
        self
    }

    /// The resulting series of the expression. Panics if it is invalid, or uses an unsupported part of the language.
    pub(crate) fn query(&self, expression: &str) -> Vec<Labels> {
        let token =
            Regex::new(r#"\s*([A-Za-z_]\w*|\d+\w*(?:\.\d+)?|"[^"]*"|=~|!~|[=!<>]=|[-+*/(){}\[\],=<>])"#)
                .unwrap();
        let mut tokens = Vec::new();
        let mut rest = expression.trim();
        while !rest.is_empty() {
            let found = token.captures(rest).filter(|found| found.get(0).unwrap().start() == 0);
            let found = found.unwrap_or_else(|| panic!("cannot read {rest:?}"));
            tokens.push(found[1].to_owned());
            rest = &rest[found[0].len()..];
        }
        let mut parser = Parser {
            scraped: self,
            tokens,
            at: 0,
        };
        let value = parser.set();
        assert_eq!(parser.at, parser.tokens.len(), "{expression}: more than one expression");
        match value {
            Value::Vector(series) => series.into_iter().map(|(labels, _)| labels).collect(),
            Value::Scalar(_) => panic!("{expression}: a scalar is not an alert"),
        }
    }
}

/// Evaluates while it reads.
struct Parser<'a> {
    scraped: &'a Scraped,
    tokens: Vec<String>,
    at: usize,
}

fn without_name(labels: &Labels) -> Labels {
    let mut labels = labels.clone();
    labels.remove("__name__");
    labels
}

fn only(labels: &Labels, keys: &BTreeSet<String>) -> Labels {
    let kept = labels.iter().filter(|(key, _)| keys.contains(*key));
    kept.map(|(key, value)| (key.clone(), value.clone())).collect()
}

impl Parser<'_> {
    fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", String::as_str)
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.peek() == token;
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, token: &str) {
        assert!(self.take(token), "{token} is missing before {:?}", self.peek());
    }

    fn word(&mut self) -> String {
        self.at += 1;
        self.tokens.get(self.at - 1).expect("the expression ends too early").clone()
    }

    /// `(a, b)`
    fn list(&mut self) -> BTreeSet<String> {
        self.expect("(");
        let mut all = BTreeSet::new();
        while !self.take(")") {
            all.insert(self.word());
            self.take(",");
        }
        all
    }

    /// `a and on (b) c`
    fn set(&mut self) -> Value {
        let mut left = self.comparison();
        while self.take("and") {
            let keys = self.take("on").then(|| self.list());
            let right = self.comparison().vector();
            let key = |labels: &Labels| match &keys {
                Some(keys) => only(labels, keys),
                None => without_name(labels),
            };
            let there: BTreeSet<_> = right.iter().map(|(labels, _)| key(labels)).collect();
            let mut kept = left.vector();
            kept.retain(|(labels, _)| there.contains(&key(labels)));
            left = Value::Vector(kept);
        }
        left
    }

    /// `a > 1`: series that do not fulfil it are left out.
    fn comparison(&mut self) -> Value {
        let left = self.product();
        let compare: fn(f64, f64) -> bool = match self.peek() {
            "==" => |a, b| (a - b).abs() < f64::EPSILON,
            "!=" => |a, b| (a - b).abs() >= f64::EPSILON,
            ">" => |a, b| a > b,
            "<" => |a, b| a < b,
            ">=" => |a, b| a >= b,
            "<=" => |a, b| a <= b,
            _ => return left,
        };
        self.at += 1;
        let Value::Scalar(right) = self.product() else {
            panic!("compared with something else than a number");
        };
        let mut kept = left.vector();
        kept.retain(|(_, value)| compare(*value, right));
        Value::Vector(kept)
    }

    /// `a / b`, of series with the same labels
    fn product(&mut self) -> Value {
        let left = self.operand();
        if !self.take("/") {
            return left;
        }
        let right: BTreeMap<_, _> = self
            .operand()
            .vector()
            .into_iter()
            .map(|(labels, value)| (without_name(&labels), value))
            .collect();
        let quotients = left.vector().into_iter().filter_map(|(labels, value)| {
            let labels = without_name(&labels);
            let quotient = value / right.get(&labels)?;
            Some((labels, quotient))
        });
        Value::Vector(quotients.collect())
    }

    fn operand(&mut self) -> Value {
        if self.take("(") {
            let value = self.set();
            self.expect(")");
            return value;
        }
        let word = self.word();
        if let Ok(number) = word.parse() {
            return Value::Scalar(number);
        }
        match word.as_str() {
            "sum" | "max" | "min" => {
                let keys = if self.take("by") {
                    self.list()
                } else {
                    BTreeSet::new()
                };
                let mut groups: BTreeMap<Labels, f64> = BTreeMap::new();
                for (labels, value) in self.operand().vector() {
                    groups
                        .entry(only(&labels, &keys))
                        .and_modify(|group| match word.as_str() {
                            "sum" => *group += value,
                            "max" => *group = group.max(value),
                            _ => *group = group.min(value),
                        })
                        .or_insert(value);
                }
                Value::Vector(groups.into_iter().collect())
            }
            "absent" => match self.operand().vector().is_empty() {
                true => Value::Vector(vec![(Labels::new(), 1.0)]),
                false => Value::Vector(Vec::new()),
            },
            "rate" | "increase" => {
                self.expect("(");
                let name = self.word();
                let series = self.selected(&name);
                self.expect("[");
                self.word();
                self.expect("]");
                self.expect(")");
                let divisor = if word == "rate" { INTERVAL } else { 1.0 };
                let grown = series.into_iter().map(|series| {
                    let growth = (series.now - series.before) / divisor;
                    (without_name(&series.labels), growth)
                });
                Value::Vector(grown.collect())
            }
            _ => {
                let series = self.selected(&word).into_iter();
                Value::Vector(series.map(|series| (series.labels, series.now)).collect())
            }
        }
    }

    fn selected(&mut self, name: &str) -> Vec<Series> {
        let mut series = self.scraped.0.clone();
        series.retain(|series| series.labels["__name__"] == name);
        if self.take("{") {
            while !self.take("}") {
                let (label, operator, expected) = (self.word(), self.word(), self.word());
                let expected = expected.trim_matches('"');
                let pattern = Regex::new(&format!("^(?:{expected})$")).unwrap();
                series.retain(|series| {
                    let value = series.labels.get(&label).map_or("", String::as_str);
                    match operator.as_str() {
                        "=" => value == expected,
                        "!=" => value != expected,
                        "=~" => pattern.is_match(value),
                        "!~" => !pattern.is_match(value),
                        other => panic!("{other} is not a matcher"),
                    }
                });
                self.take(",");
            }
        }
        series
    }
}

impl Value {
    fn vector(self) -> Vec<(Labels, f64)> {
        match self {
            Self::Vector(series) => series,
            Self::Scalar(_) => panic!("a number where series are needed"),
        }
    }
}

#[test]
fn expressions_have_the_results_of_prometheus() {
    let scraped = Scraped::default()
        .with("a", "1", "x{k=\"u\"} 2\nx{k=\"v\"} 3\nonly 1\ncalls_total{code=\"500\"} 30")
        .with("a", "2", "x{k=\"u\"} 5\ncalls_total{code=\"200\"} 60");
    for (expression, expected) in [
        ("x", 3),
        ("x{k=\"u\"}", 2),
        ("x{k=~\"u|w\"} > 2", 1),
        ("x{k!~\"u\",job=\"a\"}", 1),
        ("x and on (job, instance) only", 2),
        ("x > 2 and on () only == 1", 2),
        ("x and only", 0),
        ("max(x) == 5", 1),
        ("max(x and on (instance) only) == 3", 1),
        ("sum by (k) (x) == 7", 1),
        ("min by (instance) (x) > 1", 2),
        ("absent(x)", 0),
        ("absent(y)", 1),
        ("sum(rate(calls_total{code=~\"5..\"}[5m])) / sum(rate(calls_total[5m])) > 0.3", 1),
        ("sum(rate(calls_total{code=~\"5..\"}[5m])) / sum(rate(calls_total[5m])) > 0.4", 0),
        ("rate(calls_total[5m]) == 0.1", 1),
        ("increase(calls_total[5m]) == 60", 1),
    ] {
        assert_eq!(scraped.query(expression).len(), expected, "{expression}");
    }
}
