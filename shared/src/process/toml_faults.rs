//! What is wrong with a TOML text: not the first fault alone, which costs whoever mends it one run for each.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Error};

/// So many are told.
const MOST: usize = 20;

/// Reads a text, or says what is wrong with it: all that is no TOML, or else each key that is unknown and each value that
/// its key does not take.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let (mut table, mut faults) = DeTable::parse_recoverable(text);
    if faults.is_empty() {
        let mut taken_out = Vec::new();
        // What is found is taken out, and the rest read again.
        while faults.len() < MOST {
            let error = match T::deserialize(toml::Deserializer::from(table.clone())) {
                Ok(read) if faults.is_empty() => return Ok(read),
                Ok(_) => break,
                Err(error) => error,
            };
            // It is there, and wrong.
            let is_told = taken_out.iter().any(|name| error.message() == format!("missing field `{name}`"));
            let name = error.span().and_then(|span| take_out(table.get_mut(), &span));
            if !is_told {
                faults.push(error);
            }
            let Some(name) = name else { break };
            taken_out.push(name);
        }
    }
    faults.sort_by_key(|fault| fault.span().map(|span| span.start));
    let told = |mut fault: Error| {
        fault.set_input(Some(text));
        fault.to_string().trim_end().to_owned()
    };
    Err(faults.into_iter().take(MOST).map(told).collect::<Vec<_>>().join("\n"))
}

/// Takes out what a fault is about, and says what it is called: an entry, or a table that lacks something.
fn take_out(table: &mut DeTable<'_>, fault: &Range<usize>) -> Option<String> {
    for (key, value) in table.iter_mut() {
        let found = match value.get_mut() {
            DeValue::Table(inner) => take_out(inner, fault),
            DeValue::Array(values) => take_out_of_array(values, key.get_ref(), fault),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    let about = |span: Range<usize>| span.start <= fault.start && fault.end <= span.end;
    let is_it = |(key, value): &(&Spanned<_>, &Spanned<DeValue<'_>>)| match value.get_ref() {
        DeValue::Table(_) => about(key.span()) || value.span() == *fault,
        DeValue::Array(values) if values.iter().any(|value| value.get_ref().is_table()) => about(key.span()),
        _ => about(key.span()) || about(value.span()),
    };
    let key = table.iter().find(is_it)?.0.clone();
    table.remove(&key);
    Some(key.into_inner().into_owned())
}

/// The same of the tables in an array, which is `called` so.
fn take_out_of_array(values: &mut DeArray<'_>, called: &str, fault: &Range<usize>) -> Option<String> {
    for value in values.iter_mut() {
        if let DeValue::Table(inner) = value.get_mut()
            && let Some(name) = take_out(inner, fault)
        {
            return Some(name);
        }
    }
    let lacking = values.iter().position(|value| value.get_ref().is_table() && value.span() == *fault)?;
    let others = values.iter().enumerate().filter(|(place, _)| *place != lacking);
    *values = others.map(|(_, value)| value.clone()).collect();
    Some(called.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[serde(default)]
        number: u8,
        #[serde(default)]
        inner: Vec<Inner>,
        #[serde(default)]
        table: BTreeMap<String, u8>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        name: String,
        #[serde(default)]
        sizes: Vec<u8>,
    }

    fn faults(text: &str) -> Vec<String> {
        let told = read::<Outer>(text).unwrap_err();
        let lines = told.lines().filter_map(|line| line.strip_prefix("TOML parse error at line "));
        lines.map(|line| line.split(',').next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn each_key_and_value_that_is_wrong_is_told_with_its_line() {
        let good = "number = 7\n[[inner]]\nname = 'a'\nsizes = [1]\n[table]\na = 1\n";
        let read: Outer = read(good).unwrap();
        assert_eq!((read.number, read.inner[0].name.as_str(), &read.inner[0].sizes), (7, "a", &vec![1]));
        assert_eq!(read.table.len(), 1);
        let wrong = "number = 'x'\ncolour = 1\n[[inner]]\nname = 7\nnme = 'x'\n[[inner]]\nname = 'b'\n\
                     sizes = [1, 300]\n[table]\na = 1\nb = 'x'\n[other]\nx = 1\n";
        assert_eq!(faults(wrong), ["1", "2", "4", "5", "8", "11", "12"]);
        // What is missing is told; not what was there and wrong.
        assert_eq!(faults("[[inner]]\nsizes = []\n").len(), 1);
        assert_eq!(faults("[[inner]]\nname = 7\n"), ["2"]);
        assert_eq!(
            faults("[[inner]]\nsizes = []\n[[inner]]\nname = 'a'\nsizes = 'x'\n[table]\na = 'x'\n"),
            ["1", "5", "7"]
        );
    }

    #[test]
    fn all_that_is_no_toml_is_told_and_never_more_than_a_page() {
        assert_eq!(faults("number = \n[[inner]\nname = 'a'\ncolour = 1\n"), ["1", "2"]);
        let many: String = (0..100).map(|index| format!("x{index} = 1\n")).collect();
        assert_eq!(faults(&many).len(), MOST);
    }
}
