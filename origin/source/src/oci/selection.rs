//! Which manifest of an index, and which layer of a manifest, a repository follows. Pure.

use std::collections::HashSet;

use weir_protocol::digest::Sha256;
use weir_upstream::{LayerOperation, LayerSelector, PlatformName, shown};

use super::super::archive::{FilePath, Layout};
use super::manifest::{Descriptor, Index, Manifest, Platform};

/// The most names in a message, and the most characters of each.
const MAX_SHOWN: usize = 8;
const MAX_CHARS: usize = 100;

/// Where a layer has the name of its file.
const TITLE: &str = "org.opencontainers.image.title";

/// A layer without content, which the format demands of an artifact without layers.
pub(super) const EMPTY: &str = "application/vnd.oci.empty.v1+json";

/// The configurations of container images.
pub(super) const IMAGE_CONFIGS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];

/// The layer that a repository follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) sha256: Sha256,
    pub(super) size: u64,
    pub(super) layout: Layout,
}

/// The manifest of an index for a platform.
///
/// # Errors
/// There is none, or several: the end of a sentence that begins with the index.
pub(super) fn choose_manifest(index: &Index, platform: Option<&PlatformName>) -> Result<Sha256, String> {
    // Those of attestations about the images are of `unknown/unknown`.
    let images: Vec<&Descriptor> =
        index.manifests.iter().filter(|it| !it.platform.as_ref().is_some_and(is_unknown)).collect();
    let Some(platform) = platform else {
        let (count, shown) = (index.manifests.len(), platforms(&images));
        return Err(format!("is an index of {count} manifests{shown}: set `platform`"));
    };
    let fits = |image: &&&Descriptor| {
        image.platform.as_ref().is_some_and(|it| platform.contains(&it.os, &it.architecture, &it.variant))
    };
    let mut fitting: Vec<&Descriptor> = images.iter().filter(fits).copied().collect();
    let has_no_variant = |image: &&Descriptor| image.platform.as_ref().is_some_and(|it| it.variant.is_empty());
    // The one that has just this name, beside others with a variant of it.
    if !platform.has_variant() && fitting.iter().any(has_no_variant) {
        fitting.retain(has_no_variant);
    }
    let mut seen = HashSet::new();
    fitting.retain(|image| seen.insert(image.sha256()));
    match fitting[..] {
        [image] => image.sha256().map_err(|digest| format!("has a manifest for `{platform}` with {digest}")),
        [] => Err(format!("has no manifest for `{platform}`{}: change `platform`", platforms(&images))),
        _ => {
            // Nothing in `platform` tells apart those that have the same variant.
            let variants: HashSet<_> =
                fitting.iter().map(|image| image.platform.as_ref().map(|it| &it.variant)).collect();
            let (count, shown) = (fitting.len(), platforms(&fitting));
            let what = if variants.len() > 1 {
                "name one of them with its variant in `platform`"
            } else {
                "only one can be followed"
            };
            Err(format!("has {count} manifests for `{platform}`{shown}: {what}"))
        }
    }
}

/// The layer of a manifest: always by its media type, never by its position.
///
/// # Errors
/// There is none, or several, or it has no name: the end of a sentence that begins with the artifact.
pub(super) fn choose_layer(manifest: &Manifest, selector: &LayerSelector) -> Result<Layer, String> {
    let layers: Vec<&Descriptor> = manifest.layers.iter().filter(|layer| layer.media_type != EMPTY).collect();
    let types = media_types(&layers);
    let is_image = manifest.config.as_ref().is_some_and(|config| IMAGE_CONFIGS.contains(&config.media_type.as_str()));
    let chosen = match &selector.media_type {
        _ if layers.is_empty() => return Err("has no layers".to_owned()),
        Some(media_type) => {
            let fitting: Vec<_> = layers.iter().filter(|layer| layer.media_type == *media_type).collect();
            match fitting[..] {
                [layer] => *layer,
                [] => {
                    return Err(format!(
                        "has no layer of the media type `{media_type}`{types}: change `layer.media_type`"
                    ));
                }
                _ => {
                    return Err(format!(
                        "has {} layers of the media type `{media_type}`, of which only one can be followed: push one, with all files",
                        fitting.len()
                    ));
                }
            }
        }
        None => match layers[..] {
            _ if is_image => {
                return Err(format!("is a container image{types}: set `layer.media_type` to follow one of its layers"));
            }
            [layer] => layer,
            [first, ..] if layers.iter().all(|layer| layer.media_type == first.media_type) => {
                return Err(format!("has {} layers of one media type{types}: push one, with all files", layers.len()));
            }
            _ => return Err(format!("has {} layers{types}: set `layer.media_type`", layers.len())),
        },
    };
    let sha256 = chosen.sha256().map_err(|digest| format!("has a layer with {digest}"))?;
    let layout = match selector.operation {
        LayerOperation::Extract if is_image => Layout::OfImage,
        LayerOperation::Extract => Layout::AsIs,
        LayerOperation::Copy => {
            let Some(title) = chosen.annotations.get(TITLE) else {
                return Err(format!("has a layer without the annotation `{TITLE}`, which is the path of its file"));
            };
            let name = FilePath::new(title).ok_or_else(|| {
                let title = shown(title, MAX_CHARS);
                format!("has a layer with the title `{title}`, which cannot be the path of a file")
            })?;
            Layout::OneFile(name)
        }
    };
    Ok(Layer { sha256, size: chosen.size, layout })
}

fn is_unknown(platform: &Platform) -> bool {
    platform.os == "unknown" && platform.architecture == "unknown"
}

/// The platforms of manifests, for messages.
fn platforms(manifests: &[&Descriptor]) -> String {
    let named = |descriptor: &&Descriptor| {
        let Platform { os, architecture, variant } = descriptor.platform.as_ref().filter(|it| !it.os.is_empty())?;
        let separator = if variant.is_empty() { "" } else { "/" };
        Some(format!("{os}/{architecture}{separator}{variant}"))
    };
    list(manifests.iter().filter_map(named))
}

fn media_types(layers: &[&Descriptor]) -> String {
    list(layers.iter().map(|layer| layer.media_type.clone()))
}

/// ` (a, b, …)`, or nothing. An upstream chooses the texts.
fn list(texts: impl Iterator<Item = String>) -> String {
    let mut texts: Vec<String> = texts.take(MAX_SHOWN + 1).map(|text| shown(&text, MAX_CHARS)).collect();
    if texts.len() > MAX_SHOWN {
        texts[MAX_SHOWN] = "…".to_owned();
    }
    if texts.is_empty() { String::new() } else { format!(" ({})", texts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(byte: u8) -> String {
        format!("{byte:02x}").repeat(32)
    }

    fn index(platforms: &[&str]) -> Index {
        let manifest = |(byte, platform): (usize, &&str)| {
            let parts: Vec<&str> = platform.split('/').collect();
            serde_json::json!({
                "mediaType": "m", "digest": format!("sha256:{}", hex(byte as u8)), "size": 1,
                "platform": { "os": parts[0], "architecture": parts[1], "variant": parts.get(2) },
            })
        };
        let manifests: Vec<_> = platforms.iter().enumerate().map(manifest).collect();
        serde_json::from_value(serde_json::json!({ "manifests": manifests })).unwrap()
    }

    /// Layers as media type and title.
    fn manifest(config: &str, layers: &[(&str, Option<&str>)]) -> Manifest {
        let layer = |(byte, (media_type, title)): (usize, &(&str, Option<&str>))| {
            let annotations: serde_json::Map<_, _> = title.iter().map(|it| (TITLE.to_owned(), (*it).into())).collect();
            let digest = format!("sha256:{}", hex(byte as u8));
            serde_json::json!({ "mediaType": media_type, "digest": digest, "size": byte, "annotations": annotations })
        };
        let layers: Vec<_> = layers.iter().enumerate().map(layer).collect();
        let config = serde_json::json!({ "mediaType": config, "digest": "x", "size": 2 });
        serde_json::from_value(serde_json::json!({ "config": config, "layers": layers })).unwrap()
    }

    #[test]
    fn a_platform_names_one_manifest_of_an_index() {
        let index = index(&["linux/amd64", "unknown/unknown", "linux/arm/v6", "linux/arm/v7"]);
        let choose = |platform: Option<&str>| {
            let platform = platform.map(|platform| platform.parse::<PlatformName>().unwrap());
            choose_manifest(&index, platform.as_ref()).map(|digest| digest.to_string())
        };
        assert_eq!(choose(Some("linux/amd64")), Ok(hex(0)));
        assert_eq!(choose(Some("linux/arm/v7")), Ok(hex(3)));
        for (platform, reason) in [
            (None, "is an index of 4 manifests (linux/amd64, linux/arm/v6, linux/arm/v7): set `platform`"),
            (Some("linux/arm"), "has 2 manifests for `linux/arm` (linux/arm/v6, linux/arm/v7): name one of them"),
            (Some("linux/s390x"), "has no manifest for `linux/s390x` (linux/amd64, linux/arm/v6, linux/arm/v7)"),
            (Some("unknown/unknown"), "has no manifest for `unknown/unknown`"),
        ] {
            let error = choose(platform).unwrap_err();
            assert!(error.starts_with(reason), "{error}");
        }
    }

    #[test]
    fn a_platform_without_a_variant_names_the_manifest_without_one() {
        let choose = |platforms: &[&str], digests: &[usize], platform: &str| {
            let mut index = index(platforms);
            let copies: Vec<_> = digests.iter().map(|at| index.manifests[*at].clone()).collect();
            index.manifests.extend(copies);
            choose_manifest(&index, Some(&platform.parse().unwrap())).map(|digest| digest.to_string())
        };
        let arm = ["linux/arm/v7", "linux/arm", "linux/arm64/v8"];
        assert_eq!(choose(&arm, &[], "linux/arm"), Ok(hex(1)));
        assert_eq!(choose(&arm, &[], "linux/arm/v7"), Ok(hex(0)));
        assert_eq!(choose(&arm, &[], "linux/arm64"), Ok(hex(2)));
        assert_eq!(choose(&arm, &[1, 2, 2], "linux/arm64"), Ok(hex(2)), "the same manifest is listed three times");
        let error = choose(&["linux/amd64", "linux/amd64"], &[], "linux/amd64").unwrap_err();
        assert!(error.starts_with("has 2 manifests for `linux/amd64` (linux/amd64, linux/amd64): only one"), "{error}");
    }

    #[test]
    fn a_layer_is_chosen_by_its_media_type_wherever_it_is() {
        let select = |media_type: Option<&str>| LayerSelector {
            media_type: media_type.map(str::to_owned),
            operation: LayerOperation::Extract,
        };
        let choose = |config: &str, layers: &[&str], media_type: Option<&str>| {
            let layers: Vec<_> = layers.iter().map(|layer| (*layer, None)).collect();
            let chosen = choose_layer(&manifest(config, &layers), &select(media_type))?;
            assert_eq!(chosen.layout == Layout::OfImage, config == IMAGE_CONFIGS[0]);
            Ok::<_, String>((chosen.sha256.to_string(), chosen.size))
        };
        let (flux, image) = ("application/vnd.cncf.flux.config.v1+json", IMAGE_CONFIGS[0]);
        assert_eq!(choose(flux, &["a"], None), Ok((hex(0), 0)));
        assert_eq!(choose(flux, &["provenance", "a"], Some("a")), Ok((hex(1), 1)));
        assert_eq!(choose(flux, &["a", "provenance"], Some("a")), Ok((hex(0), 0)));
        assert_eq!(choose(flux, &[EMPTY, "a"], None), Ok((hex(1), 1)));
        assert_eq!(choose(image, &["a"], Some("a")), Ok((hex(0), 0)));
        for (config, layers, media_type, reason) in [
            (flux, &["a", "b"][..], None, "has 2 layers (a, b): set `layer.media_type`"),
            (flux, &["a", "b"], Some("c"), "has no layer of the media type `c` (a, b): change"),
            (
                flux,
                &["a", "a"],
                Some("a"),
                "has 2 layers of the media type `a`, of which only one can be followed: push one",
            ),
            (flux, &[EMPTY], None, "has no layers"),
            (image, &["a"], None, "is a container image (a): set `layer.media_type`"),
            (flux, &["a", "a"], None, "has 2 layers of one media type (a, a): push one, with all files"),
            (
                flux,
                &["a", "a", "b", "a", "a", "a", "a", "a", "a"],
                None,
                "has 9 layers (a, a, b, a, a, a, a, a, …): set",
            ),
        ] {
            let error = choose(config, layers, media_type).unwrap_err();
            assert!(error.starts_with(reason), "{error}");
        }
    }

    #[test]
    fn a_copied_layer_has_the_name_of_its_title() {
        let copy = LayerSelector { media_type: None, operation: LayerOperation::Copy };
        let choose =
            |title: Option<&str>| choose_layer(&manifest("c", &[("a", title)]), &copy).map(|layer| layer.layout);
        assert_eq!(choose(Some("policy.json")), Ok(Layout::OneFile(FilePath::new("policy.json").unwrap())));
        assert!(choose(None).unwrap_err().contains("without the annotation `org.opencontainers.image.title`"));
        let hostile = format!("\u{1b}[31m/{}", "x".repeat(1000));
        let error = choose(Some(&hostile)).unwrap_err();
        assert!(error.contains("[31m/xxx") && error.len() < 300 && !error.contains('\u{1b}'), "{error}");
        assert_eq!(choose(Some("app/deploy.yaml")), Ok(Layout::OneFile(FilePath::new("app/deploy.yaml").unwrap())));
        for title in ["../x", "/x", "", "."] {
            assert!(choose(Some(title)).unwrap_err().contains("cannot be the path of a file"), "{title}");
        }
    }
}
