//! What tar and helm read without complaint, although it is odd.

use super::*;

#[test]
fn of_members_with_one_name_the_last_one_counts() {
    let executable = |contents: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes().copy_from_slice(&file("shop/a", contents)[..512]);
        header.set_mode(0o755);
        header.set_cksum();
        [header.as_bytes(), &file("shop/a", contents)[512..]].concat()
    };
    let link = |target: &[u8]| member(b"shop/a", b'2', target, b"");
    // `helm package` writes a dependency twice if `charts/` has it as folder and as archive, and `tar --update` a changed file.
    for (members, expected) in [
        (vec![file("shop/a", b"1"), file("shop/a", b"1")], &["a = 1"][..]),
        (vec![file("shop/a", b"1"), file("shop/b", b"2"), file("shop/./a", b"3")], &["a = 3", "b = 2"]),
        (vec![executable(b"1"), file("shop/a", b"1")], &["a = 1"]),
        (vec![file("shop/a", b"1"), executable(b"1")], &["a* = 1"]),
        (vec![link(b"x"), file("shop/a", b"1")], &["a = 1"]),
        (vec![file("shop/a", b"1"), link(b"x"), link(b"yy")], &["a -> yy"]),
        (
            vec![file("shop/a", b"1"), member(b"shop/b", b'1', b"shop/a", b""), file("shop/a", b"2")],
            &["a = 2", "b = 1"],
        ),
    ] {
        assert_eq!(lines(&tar(&members), &Layout::StripTop), expected);
    }
}
