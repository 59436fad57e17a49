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

#[test]
fn a_name_that_deletes_in_images_is_one_elsewhere() {
    let names = ["shop/a/.wh.b", "shop/.wh..wh..opq"];
    for name in names {
        let archive = tar(&[file("shop/a/c", b"1"), file(name, b"2")]);
        assert_eq!(lines(&archive, &Layout::AsIs).len(), lines(&archive, &Layout::StripTop).len() + 1);
        let reason = refusal(&archive, &Layout::OfImage);
        assert!(
            reason.starts_with(&format!("has the member `{name}`, which deletes a file of another layer")),
            "{reason}"
        );
    }
    assert_eq!(lines(&tar(&[file("shop/a", b"1")]), &Layout::OfImage), ["shop/", "shop/a = 1"]);
}

#[test]
fn blank_numbers_are_zero() {
    let blank = |kind: u8, at: std::ops::Range<usize>, blank: u8, contents: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes().copy_from_slice(&member(b"shop/a", kind, b"x", contents)[..512]);
        header.as_mut_bytes()[at].fill(blank);
        header.set_cksum();
        let end = member(b"shop/a", kind, b"", contents)[512..].to_vec();
        tar(&[file("shop/b", b"2"), [header.as_bytes().to_vec(), end].concat()])
    };
    let (mode, size, owner_and_time) = (100..108, 124..136, 108..124);
    for byte in [0, b' '] {
        for (field, contents, expected) in
            [(mode.clone(), "1", "a = 1"), (size.clone(), "", "a = "), (owner_and_time.clone(), "1", "a = 1")]
        {
            let archive = blank(b'0', field, byte, contents.as_bytes());
            assert_eq!(lines(&archive, &Layout::StripTop), [expected, "b = 2"]);
        }
        assert_eq!(lines(&blank(b'5', size.clone(), byte, b""), &Layout::StripTop), ["a/", "b = 2"]);
        assert_eq!(lines(&blank(b'2', size.clone(), byte, b""), &Layout::StripTop), ["a -> x", "b = 2"]);
    }
    let reason = refusal(&blank(b'0', size, 0, b"what no size announces"), &Layout::StripTop);
    assert!(reason.starts_with("cannot be unpacked: "), "{reason}");
}

#[test]
fn zeros_may_fill_up_a_gzip_file() {
    let archive = tar(&[file("shop/a", &[7; 3000])]);
    let several = [gzip(&archive[..1000]), gzip(b""), gzip(&archive[1000..])].concat();
    for padding in [1, 511, 200_000] {
        let padded = [several.clone(), vec![0; padding]].concat();
        assert_eq!(lines(&padded, &Layout::StripTop), lines(&archive, &Layout::StripTop));
        for end in [&b"x"[..], &gzip(b"x")] {
            let reason = refusal(&[&padded, end].concat(), &Layout::StripTop);
            assert_eq!(reason, "cannot be unpacked: something follows the end of the gzip file");
        }
    }
    assert!(refusal(&[&several[..], b"x"].concat(), &Layout::StripTop).starts_with("cannot be unpacked: "));
}

#[test]
fn a_zstd_file_may_begin_with_frames_to_skip() {
    let archive = tar(&[file("shop/a", &[7; 3000])]);
    let skipped = |magic: u8, length: u32| {
        [&[magic, 0x2a, 0x4d, 0x18][..], &length.to_le_bytes(), &vec![9; length as usize]].concat()
    };
    for start in [skipped(0x50, 4), skipped(0x5f, 0), [skipped(0x5a, 70_000), skipped(0x50, 12)].concat()] {
        let compressed = [start.clone(), zstd(&archive[..1000], 17), start, zstd(&archive[1000..], 17)].concat();
        assert_eq!(lines(&compressed, &Layout::StripTop), lines(&archive, &Layout::StripTop));
        assert!(refusal(&compressed[..9], &Layout::StripTop).starts_with("cannot be unpacked: "));
    }
}
