//! What the compiler does not check about the layout of the code: no modules import each other in circles, and no file is
//! longer than a reader's patience. Clippy checks the length of functions and that queues have bounds (`clippy.toml`).
//!
//! The siblings of one folder are compared: a file uses another one if a path in it leads there, through re-exports. What a
//! folder's own `mod.rs` defines may be used by all files below it. Tests may use what they like.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::Peekable;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree, token_stream};

/// The folders of the crates, and of their tests.
const CRATES: &[&str] = &[
    "shared/protocol",
    "shared/http3",
    "shared/runtime",
    "origin/model",
    "origin/store",
    "origin/tarball",
    "origin/observed",
    "origin/ownership",
    "origin/rollout",
    "origin/upstream",
    "origin/git",
    "origin/source",
    "origin/publish",
    "origin",
    "edge/cache",
    "edge",
    "agent/release",
    "agent",
    "loadtest",
    "deploy/standalone",
];

const MAX_LINES: usize = 500;

/// Modules of a folder that import each other in circles, each with the reason. A circle may only become smaller.
#[rustfmt::skip]
const CIRCLES: &[(&str, &[&str], &str)] = &[
    ("origin/ownership/src", &["decision", "repository"], "one state machine in two files"),
    ("origin/ownership/src/simulation", &["check", "engine"], "one simulator in several files"),
    ("origin/ownership/src/simulation", &["node", "world", "writer"], "one simulator in several files"),
    ("origin/git/src/mirror", &["left_out", "listing", "protocol_session", "refs"], "one listing in four files"),
    ("origin/git/src/tree", &["contents", "walk"], "one walk in two files"),
];

type ModulePath = Vec<String>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Rust files below a folder, by their paths in it.
fn files(folder: &Path) -> BTreeMap<PathBuf, String> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![PathBuf::new()]);
    while let Some(below) = folders.pop() {
        for entry in fs::read_dir(folder.join(&below)).unwrap().map(Result::unwrap) {
            let path = below.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.insert(path.clone(), fs::read_to_string(entry.path()).unwrap());
            }
        }
    }
    found
}

/// The modules of a crate, with the paths that each of them uses, and what each re-exports.
#[derive(Default)]
struct Modules {
    uses: BTreeMap<ModulePath, Vec<ModulePath>>,
    reexports: BTreeMap<ModulePath, BTreeMap<String, ModulePath>>,
}

impl Modules {
    fn read(src: &Path) -> Self {
        let files: BTreeMap<_, _> = files(src).into_iter().map(|(path, text)| (module(&path), text)).collect();
        let mut modules =
            Self { uses: files.keys().map(|module| (module.clone(), Vec::new())).collect(), ..Self::default() };
        for (module, text) in files {
            let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{module:?}: {error}"));
            modules.walk(&module, tokens);
        }
        modules
    }

    fn walk(&mut self, module: &ModulePath, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        let mut is_test = false;
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    if let Some(TokenTree::Group(attribute)) = tokens.peek() {
                        let attribute = attribute.stream().to_string().replace(' ', "");
                        is_test |= ["cfg(test)", r#"cfg(any(test,feature="testing"))"#].contains(&attribute.as_str());
                        tokens.next();
                    }
                }
                // The item ends with its body, or without one.
                TokenTree::Group(group) if is_test => is_test = group.delimiter() != Delimiter::Brace,
                TokenTree::Punct(punct) if is_test => is_test = punct.as_char() != ';',
                _ if is_test => {}
                TokenTree::Group(group) => self.walk(module, group.stream()),
                // Not what a type captures: `use<'a>`.
                TokenTree::Ident(word) if word == "use" && !is_punct(tokens.peek(), '<') => {
                    self.paths(module, Vec::new(), &mut tokens, true);
                }
                TokenTree::Ident(word)
                    if ["crate", "super", "self"].iter().any(|root| word == root) && is_path(&mut tokens) =>
                {
                    self.paths(module, vec![word.to_string()], &mut tokens, false);
                }
                _ => {}
            }
        }
    }

    /// Reads the paths after `prefix`. `is_use`: in an import, whose names others may see here.
    fn paths(
        &mut self,
        module: &ModulePath,
        mut prefix: ModulePath,
        tokens: &mut Peekable<token_stream::IntoIter>,
        is_use: bool,
    ) {
        while let Some(token) = tokens.peek() {
            match token {
                TokenTree::Ident(word) if word == "self" && !prefix.is_empty() => {}
                TokenTree::Ident(word) => prefix.push(word.to_string()),
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace && is_use => {
                    let mut within = group.stream().into_iter().peekable();
                    while within.peek().is_some() {
                        self.paths(module, prefix.clone(), &mut within, true);
                    }
                    tokens.next();
                    return;
                }
                _ => break,
            }
            tokens.next();
            if !is_path(tokens) {
                break;
            }
        }
        let mut name = prefix.last().cloned().unwrap_or_default();
        while is_use
            && tokens
                .peek()
                .is_some_and(|token| !matches!(token, TokenTree::Punct(end) if matches!(end.as_char(), ',' | ';')))
        {
            name = tokens.next().map(|token| token.to_string()).unwrap_or_default();
        }
        if is_use {
            tokens.next();
        }
        let Some(path) = self.absolute(module, &prefix) else { return };
        if is_use {
            self.reexports.entry(module.clone()).or_default().insert(name, path.clone());
        }
        self.uses.entry(module.clone()).or_default().push(path);
    }

    /// A path from the crate's root. `None`: it leads to another crate.
    fn absolute(&self, module: &ModulePath, path: &[String]) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        let mut from = module.clone();
        match first.as_str() {
            "crate" => from.clear(),
            "self" => {}
            "super" => drop(from.pop()),
            child => {
                from.push(child.to_owned());
                return self.uses.contains_key(&from).then(|| [from, rest.to_vec()].concat());
            }
        }
        let above = rest.iter().take_while(|segment| *segment == "super").count();
        from.truncate(from.len().saturating_sub(above));
        Some([from, rest[above..].to_vec()].concat())
    }

    /// The module in which something is defined.
    fn module_of(&self, path: &[String], depth: usize) -> ModulePath {
        let mut module = Vec::new();
        for (index, segment) in path.iter().enumerate() {
            let child = [module.as_slice(), std::slice::from_ref(segment)].concat();
            if self.uses.contains_key(&child) {
                module = child;
                continue;
            }
            let reexported = self.reexports.get(&module).and_then(|names| names.get(segment));
            return match reexported.filter(|_| depth < 8) {
                Some(target) => self.module_of(&[target.as_slice(), &path[index + 1..]].concat(), depth + 1),
                None => module,
            };
        }
        module
    }

    /// Which siblings each module uses, by folder.
    fn edges(&self) -> BTreeMap<ModulePath, BTreeMap<String, BTreeSet<String>>> {
        let mut edges: BTreeMap<ModulePath, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for (from, paths) in self.uses.iter().filter(|(from, _)| !from.iter().any(|name| name == "tests")) {
            for to in paths.iter().map(|path| self.module_of(path, 0)) {
                let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
                if let (Some(user), Some(used)) = (from.get(common), to.get(common)) {
                    let folder = edges.entry(from[..common].to_vec()).or_default();
                    folder.entry(user.clone()).or_default().insert(used.clone());
                }
            }
        }
        edges
    }
}

/// The module of a file.
fn module(path: &Path) -> ModulePath {
    let mut module: Vec<String> =
        path.with_extension("").iter().map(|name| name.to_str().unwrap().to_owned()).collect();
    if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        module.pop();
    }
    module
}

fn is_punct(token: Option<&TokenTree>, character: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == character)
}

/// Takes `::`, if it comes next.
fn is_path(tokens: &mut Peekable<token_stream::IntoIter>) -> bool {
    let mut ahead = tokens.clone();
    let is_path = is_punct(ahead.next().as_ref(), ':') && is_punct(ahead.next().as_ref(), ':');
    if is_path {
        *tokens = ahead;
    }
    is_path
}

/// The sets of modules that use each other in circles.
fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<BTreeSet<String>> {
    let reachable = |from: &String| {
        let (mut found, mut waiting) = (BTreeSet::new(), vec![from]);
        while let Some(next) = waiting.pop() {
            waiting.extend(edges.get(next).into_iter().flatten().filter(|used| found.insert((*used).clone())));
        }
        found
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = edges.keys().map(|name| (name, reachable(name))).collect();
    let with = |name: &&String| {
        let mutual = |other: &&String| {
            reached[*name].contains(*other) && reached.get(other).is_some_and(|back| back.contains(*name))
        };
        edges.keys().filter(mutual).cloned().collect::<BTreeSet<String>>()
    };
    edges.keys().map(|name| with(&name)).filter(|circle| circle.len() > 1).collect()
}

#[test]
fn modules_do_not_import_each_other_in_circles() {
    let mut found = Vec::new();
    for name in CRATES {
        let src = Path::new(name).join("src");
        for (folder, edges) in Modules::read(&root().join(&src)).edges() {
            let folder = folder.iter().fold(src.clone(), |path, name| path.join(name)).display().to_string();
            found.extend(circles(&edges).into_iter().map(|circle| (folder.clone(), circle, edges.clone())));
        }
    }
    let is_listed =
        |folder: &str, name: &str| CIRCLES.iter().any(|(of, names, _)| *of == folder && names.contains(&name));
    let mut wrong = Vec::new();
    for (folder, circle, edges) in &found {
        if !circle.iter().all(|name| is_listed(folder, name)) {
            let of = |name: &String| format!("{name} uses {:?}", edges[name].intersection(circle).collect::<Vec<_>>());
            wrong.push(format!("{folder}: a circle: {}", circle.iter().map(of).collect::<Vec<_>>().join("; ")));
        }
    }
    for (folder, names, _) in CIRCLES {
        for name in *names {
            if !found.iter().any(|(of, circle, _)| of == folder && circle.contains(*name)) {
                wrong.push(format!("{folder}: `{name}` is in no circle any more: take it from the list"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_are_short() {
    let mut long = BTreeMap::new();
    for name in CRATES {
        for (path, text) in
            ["src", "tests"].map(|part| root().join(name).join(part)).iter().filter(|at| at.exists()).flat_map(|at| {
                files(at).into_iter().map(|(path, text)| (at.strip_prefix(root()).unwrap().join(path), text))
            })
        {
            let lines = text.lines().count();
            if lines > MAX_LINES {
                long.insert(path.display().to_string(), lines);
            }
        }
    }
    assert!(long.is_empty(), "files of more than {MAX_LINES} lines: {long:?}");
}
