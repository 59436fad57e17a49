//! What the reference needs of the source: structs with their doc comments, enums, and the values of constants.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use syn::{Attribute, BinOp, Expr, ExprLit, Fields, GenericArgument, Item, Lit, Meta, PathArguments, Type};

use super::root;

/// A key of a configuration file.
pub(super) struct Key {
    pub(super) name: String,
    pub(super) description: String,
    /// The type, without `Option` and `Vec`.
    pub(super) kind: String,
    pub(super) is_list: bool,
    pub(super) is_required: bool,
}

/// The structs and enums below some files.
#[derive(Default)]
pub(super) struct Types(BTreeMap<String, Item>);

fn files(path: &Path, found: &mut Vec<syn::File>) {
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| files(&entry.unwrap().path(), found));
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        found.push(syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap());
    }
}

/// The doc comment, as one line.
fn description(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter(|attribute| attribute.path().is_ident("doc")).filter_map(|attribute| {
        let Meta::NameValue(doc) = &attribute.meta else { return None };
        let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = &doc.value else { return None };
        Some(text.value().trim().to_owned())
    });
    lines.collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Whether serde's attribute has this word, with its value if it has one.
fn serde(attributes: &[Attribute], word: &str) -> Option<String> {
    let mut found = None;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        attribute
            .parse_nested_meta(|meta| {
                let value = meta.value().and_then(|value| value.parse::<syn::LitStr>());
                let value = value.map(|text| text.value()).unwrap_or_default();
                if meta.path.is_ident(word) {
                    found = Some(value);
                }
                Ok(())
            })
            .unwrap();
    }
    found
}

/// The name of a type, and that of its argument.
fn names(kind: &Type) -> (String, Option<&Type>) {
    let Type::Path(path) = kind else { panic!("a key has a type with a name") };
    let last = path.path.segments.last().unwrap();
    let argument = match &last.arguments {
        PathArguments::AngleBracketed(arguments) => arguments.args.first(),
        _ => None,
    };
    let argument = argument.and_then(|argument| if let GenericArgument::Type(of) = argument { Some(of) } else { None });
    (last.ident.to_string(), argument)
}

impl Types {
    pub(super) fn read(paths: &[&str]) -> Self {
        let mut found = Vec::new();
        paths.iter().for_each(|path| files(&root().join(path), &mut found));
        let items = found.into_iter().flat_map(|file| file.items).filter_map(|item| match &item {
            Item::Struct(of) => Some((of.ident.to_string(), item)),
            Item::Enum(of) => Some((of.ident.to_string(), item)),
            _ => None,
        });
        Self(items.collect())
    }

    /// The doc comment and the keys of a struct.
    pub(super) fn table(&self, name: &str) -> Option<(String, Vec<Key>)> {
        let Some(Item::Struct(of)) = self.0.get(name) else { return None };
        let Fields::Named(fields) = &of.fields else { return None };
        let all_have_defaults = serde(&of.attrs, "default").is_some();
        let fields = fields.named.iter().filter(|field| serde(&field.attrs, "skip").is_none());
        let keys = fields.map(|field| {
            let (mut kind, mut argument) = names(&field.ty);
            let mut is_list = kind == "Vec";
            while let Some(of) = argument.filter(|_| kind == "Option" || kind == "Vec") {
                (kind, argument) = names(of);
                is_list |= kind == "Vec";
            }
            let has_default = all_have_defaults || serde(&field.attrs, "default").is_some();
            let ident = field.ident.as_ref().unwrap().to_string();
            Key {
                name: serde(&field.attrs, "rename").unwrap_or(ident),
                description: description(&field.attrs),
                kind,
                is_list,
                is_required: !has_default,
            }
        });
        Some((description(&of.attrs), keys.collect()))
    }

    /// The values of an enum, each with its doc comment.
    pub(super) fn values(&self, name: &str) -> Option<Vec<(String, String)>> {
        let Some(Item::Enum(of)) = self.0.get(name) else { return None };
        // Variants with a content are types, not values.
        if of.variants.iter().any(|variant| !matches!(variant.fields, Fields::Unit)) {
            return None;
        }
        let variants = of.variants.iter();
        Some(variants.map(|each| (each.ident.to_string().to_lowercase(), description(&each.attrs))).collect())
    }
}

/// The constants of a file, by their names.
pub(super) fn constants(file: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let items = syn::parse_file(&text).unwrap().items;
    let constants = items.into_iter().filter_map(|item| if let Item::Const(of) = item { Some(of) } else { None });
    constants.filter_map(|of| Some((of.ident.to_string(), value(&of.expr)?))).collect()
}

/// The value of a constant, if it is a number or a duration.
fn value(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Call(call) => {
            let Expr::Path(function) = &*call.func else { return None };
            let number = number(call.args.first()?)?;
            let duration = match function.path.segments.last()?.ident.to_string().as_str() {
                "from_secs" => std::time::Duration::from_secs(number),
                "from_millis" => std::time::Duration::from_millis(number),
                _ => return None,
            };
            Some(humantime::format_duration(duration).to_string())
        }
        Expr::Binary(of) if matches!(of.op, BinOp::Shl(_)) => Some(bytes(number(expression)?)),
        _ => number(expression).map(grouped),
    }
}

fn number(expression: &Expr) -> Option<u64> {
    match expression {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse().ok(),
        Expr::Binary(of) => {
            let (left, right) = (number(&of.left)?, number(&of.right)?);
            match of.op {
                BinOp::Shl(_) => left.checked_shl(right.try_into().ok()?),
                BinOp::Mul(_) => left.checked_mul(right),
                _ => None,
            }
        }
        _ => None,
    }
}

/// `16 KiB`.
fn bytes(bytes: u64) -> String {
    let unit = [(30, "GiB"), (20, "MiB"), (10, "KiB")].into_iter().find(|(shift, _)| bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{bytes} B"), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}

/// `10,000`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let parts = digits.as_bytes().rchunks(3).rev().map(|part| std::str::from_utf8(part).unwrap());
    parts.collect::<Vec<_>>().join(",")
}
