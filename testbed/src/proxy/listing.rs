//! Listings of AWS's Query protocol.

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

/// The elements that contain the items of a list, in EC2 and in the other services.
const ITEMS: [&str; 2] = ["item", "member"];

/// The first list of an answer.
struct List<'a> {
    before: &'a str,
    items: Vec<&'a str>,
    after: &'a str,
}

impl<'a> List<'a> {
    fn first_of(answer: &'a str) -> Option<Self> {
        let (start, name) = ITEMS
            .into_iter()
            .filter_map(|name| Some((answer.find(&format!("<{name}>"))?, name)))
            .min()?;
        let mut items = Vec::new();
        let mut rest = &answer[start..];
        while let Some(length) = element(rest, name) {
            let (item, after) = rest.split_at(length);
            items.push(item);
            rest = after.trim_start();
        }
        Some(Self {
            before: &answer[..start],
            items,
            after: rest,
        })
    }

    fn joined(&self, items: &[impl AsRef<str>]) -> String {
        let items: String = items.iter().map(AsRef::as_ref).collect();
        format!("{}{items}{}", self.before, self.after)
    }
}

/// The answer with the items of its first list in another order. AWS documents no order.
pub(super) fn reordered(answer: &str, seed: u64) -> Option<String> {
    let list = List::first_of(answer)?;
    let mut items = list.items.clone();
    items.shuffle(&mut StdRng::seed_from_u64(seed));
    Some(list.joined(&items))
}

/// The answer without these items of its first list; `None`: it has none of them.
pub(super) fn without_items(answer: &str, mut is_hidden: impl FnMut(&str) -> bool) -> Option<String> {
    let list = List::first_of(answer)?;
    let mut shown = list.items.clone();
    shown.retain(|item| !is_hidden(item));
    (shown.len() < list.items.len()).then(|| list.joined(&shown))
}

/// The answer without these items of the lists in the items of its first list; `None`: it has none of them. The function gets an
/// item of the first list, and one of the list in it.
pub(super) fn without_nested_items(
    answer: &str,
    mut is_hidden: impl FnMut(&str, &str) -> bool,
) -> Option<String> {
    let list = List::first_of(answer)?;
    let mut has_hidden = false;
    let mut items = Vec::new();
    for item in &list.items {
        // The name of the element itself is not searched.
        let (open, content) = item.split_at(item.find('>')? + 1);
        match without_items(content, |nested| is_hidden(item, nested)) {
            Some(shown) => {
                has_hidden = true;
                items.push(format!("{open}{shown}"));
            }
            None => items.push((*item).to_owned()),
        }
    }
    has_hidden.then(|| list.joined(&items))
}

/// The length of the element with this name at the start of the text.
fn element(text: &str, name: &str) -> Option<usize> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut at = text.strip_prefix(&open).map(|_| open.len())?;
    let mut depth = 1;
    while depth > 0 {
        let next_close = at + text[at..].find(&close)?;
        match text[at..next_close].find(&open) {
            Some(nested) => {
                depth += 1;
                at += nested + open.len();
            }
            None => {
                depth -= 1;
                at = next_close + close.len();
            }
        }
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "<R><set>\n <item><id>1</id><tags><item>a</item><item>b</item></tags></item>\n \
                          <item><id>2</id><tags/></item><item><id>3</id></item>\n</set><next>x</next></R>";

    #[test]
    fn only_the_order_of_the_outer_items_differs() {
        let orders: Vec<String> = (0..20).filter_map(|seed| reordered(ANSWER, seed)).collect();
        assert_eq!(orders.len(), 20);
        for order in &orders {
            for item in [
                "<item><id>1</id><tags><item>a</item><item>b</item></tags></item>",
                "<item><id>2</id><tags/></item>",
                "<item><id>3</id></item>",
            ] {
                assert!(order.contains(item), "{order}");
            }
            assert!(
                order.starts_with("<R><set>\n <item>") && order.ends_with("</item></set><next>x</next></R>"),
                "{order}"
            );
        }
        assert!(orders.iter().any(|order| order != &orders[0]));
    }

    #[test]
    fn an_answer_without_a_list_is_not_reordered() {
        assert_eq!(reordered("<R><requestId>x</requestId></R>", 1), None);
    }
}
