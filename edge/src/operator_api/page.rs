//! The page at `/`: this edge, for people. It asks for `/v1/summary`.

use weir_runtime::page::Page;

pub(crate) fn page() -> Page {
    Page::new("edge", include_str!("page/edge.html"), include_str!("page/edge.js"))
}
