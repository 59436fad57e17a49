//! What is refused, and the reason that operators read.

use super::*;

#[test]
fn a_member_that_leads_elsewhere_or_is_no_file_is_refused_by_name() {
    let good = || file("shop/Chart.yaml", b"name: shop");
    let cases: &[(Vec<Vec<u8>>, &str)] = &[
        (vec![file("shop/../../x", b"")], "has the member `shop/../../x`, which leads out of it"),
        (vec![file("../x", b"")], "`../x`, which leads out of it"),
        (vec![file("/etc/x", b"")], "`/etc/x`, which leads out of it"),
        (vec![member(b"shop/..", b'5', b"", b"")], "`shop/..`, which leads out of it"),
        (vec![member(b"shop/a", b'2', b"/etc", b""), file("shop/a/b", b"")], "`a/b`, which is below the symlink `a`"),
        (vec![file("shop/a/b", b""), member(b"shop/a", b'2', b"/etc", b"")], "`a`, which is there twice"),
        (vec![file("shop/a", b""), file("shop/a/b/c", b"")], "`a/b/c`, which is below the file `a`"),
        (vec![file("shop/a", b""), member(b"shop/a/", b'5', b"", b"")], "`a`, which is there twice"),
        (
            vec![good(), member(b"shop/b", b'1', b"shop/x", b"")],
            "`shop/b`, which is a hard link to `shop/x`, which is not",
        ),
        (
            vec![good(), member(b"shop/b", b'1', b"Chart.yaml", b"")],
            "which is a hard link to `Chart.yaml`, which is not",
        ),
        (vec![good(), member(b"shop/b", b'1', b"../shop/Chart.yaml", b"")], "which is a hard link to `../shop/Chart"),
        (
            vec![member(b"shop/a", b'2', b"x", b""), member(b"shop/b", b'1', b"shop/a", b"")],
            "is a hard link to `shop/a`",
        ),
        (vec![member(b"shop/null", b'3', b"", b"")], "`shop/null`, which is a device"),
        (vec![member(b"shop/disk", b'4', b"", b"")], "`shop/disk`, which is a device"),
        (vec![member(b"shop/fifo", b'6', b"", b"")], "`shop/fifo`, which is a device"),
        (vec![member(b"shop/a", b'V', b"", b"")], "`shop/a`, which has the type `V`, which is not supported"),
        (vec![member(b"shop/a", b'S', b"", b"")], "sparse"),
        (vec![member(b"shop/a", b'2', b"b", b"12")], "`shop/a`, which has contents, but is not a file"),
        (vec![member(b"shop/a", b'5', b"", b"12")], "`shop/a`, which has contents, but is not a file"),
        (vec![file("", b"")], "has no name"),
    ];
    for (members, reason) in cases {
        let tar = tar(members);
        // The folder of a chart is part of the names of its members, but not of their paths.
        let as_is = refusal(&tar, &Layout::AsIs);
        assert!(as_is.contains(&reason.replace("`a", "`shop/a")) || as_is.contains(reason), "{as_is} / {reason}");
        if !reason.contains("has no name") {
            let chart = refusal(&tar, &Layout::StripTop);
            assert!(chart.contains(reason), "{chart} / {reason}");
        }
    }
}

#[test]
fn all_members_of_a_chart_are_in_one_folder() {
    let outside = |name: &str| format!("has `{name}` outside of its folder: package it with `helm package`");
    for (members, name) in [
        (vec![file("Chart.yaml", b"")], "Chart.yaml"),
        (vec![file("shop/Chart.yaml", b""), file("./README", b"")], "./README"),
        (vec![file("shop/Chart.yaml", b""), file("other/Chart.yaml", b"")], "other/Chart.yaml"),
        (vec![member(b"shop", b'5', b"", b""), member(b"other/", b'5', b"", b"")], "other/"),
        (vec![member(b"shop", b'2', b"x", b"")], "shop"),
    ] {
        assert_eq!(refusal(&tar(&members), &Layout::StripTop), outside(name));
    }
    let chart =
        tar(&[member(b"./", b'5', b"", b""), member(b"./shop/", b'5', b"", b""), file("./shop/Chart.yaml", b"x")]);
    assert_eq!(lines(&chart, &Layout::StripTop), ["Chart.yaml = x"]);
    assert_eq!(lines(&chart, &Layout::AsIs), ["shop/", "shop/Chart.yaml = x"]);
    for empty in [tar(&[]), tar(&[member(b"shop/a/", b'5', b"", b"")]), Vec::new()] {
        assert_eq!(refusal(&empty, &Layout::StripTop), "has no files");
    }
}

#[test]
fn bytes_that_are_no_archive_are_refused() {
    let json = |blanks: usize| format!("{{{}}}", " ".repeat(blanks)).into_bytes();
    for (file, found) in [
        (json(0), ""),
        (json(5000), ""),
        (gzip(&json(9)), ""),
        (b"BZh91AY&SY".to_vec(), ", but compressed with bzip2"),
        ([b"\xfd7zXZ\0", &json(5000)[..]].concat(), ", but compressed with xz"),
        ([b"PK\x03\x04", &json(5000)[..]].concat(), ", but a zip file"),
    ] {
        let text = format!("is not a tar archive, plain or with gzip or zstd{found}: ");
        assert_eq!(refusal(&file, &Layout::StripTop), format!("{text}package it with `helm package`"));
        let copy = "to publish it as one file, set `layer.operation = \"copy\"`";
        assert_eq!(refusal(&file, &Layout::AsIs), format!("{text}{copy}"));
    }
    let whole = tar(&[file("shop/a", &[7; 3000]), file("shop/b", &[8; 3000])]);
    for (archive, ends) in [
        (whole.clone(), &[512 + 17, 512 + 3000, 4096 + 600][..]),
        (gzip(&whole), &[5, 20, gzip(&whole).len() - 8, gzip(&whole).len() - 1]),
        (zstd(&whole, 17), &[5, 20, zstd(&whole, 17).len() - 1]),
    ] {
        assert_eq!(lines(&archive, &Layout::StripTop).len(), 2);
        for end in ends {
            let reason = refusal(&archive[..*end], &Layout::StripTop);
            assert!(reason.starts_with("cannot be unpacked: "), "{end}: {reason}");
        }
    }
    let reason = refusal(&zstd(&whole, 27), &Layout::StripTop);
    assert_eq!(reason, "cannot be unpacked: zstd needs more than 8 MiB for it: compress it without `--long`");
    let mut wrong = gzip(&whole);
    let checksum = wrong.len() - 8;
    wrong[checksum] ^= 1;
    assert!(refusal(&wrong, &Layout::StripTop).contains("cannot be unpacked: "), "the checksum is verified");
}

#[test]
fn records_on_which_readers_disagree_are_refused() {
    let x = |record: Vec<u8>| member(b"pax", b'x', b"", &record);
    let a = || file("shop/a", b"contents");
    for (members, reason) in [
        (vec![x(pax("size", b"3")), a()], "`shop/a`, which has two different sizes"),
        (vec![x(pax("path", b"shop/b")), x(pax("path", b"shop/c")), a()], "two records describe one member"),
        (vec![x(pax("path", b"shop/b")), member(b"", b'L', b"", b"shop/c\0"), a()], "two records describe one member"),
        (vec![x(pax("path", b"../b")), a()], "`../b`, which leads out of it"),
        (vec![x(pax("path", b"shop/b\0c")), a()], "which has a NUL in its path"),
        (vec![member(b"", b'L', b"", b"shop/b\0\0"), a()], "which has a NUL in its path"),
        (vec![x(pax("path", &[b'a'; 4096])), a()], "which has a path of more than 4095 bytes"),
        (vec![x(pax("GNU.sparse.major", b"1")), a()], "sparse"),
        (vec![member(b"", b'g', b"", &pax("path", b"x")), a()], "a global record changes"),
        (vec![a(), x(pax("path", b"shop/b"))], "it ends before the member"),
        (vec![x(b"11 path=b\n".to_vec()), a()], "a PAX record is malformed"),
        (vec![x(b"+9 path=b\n".to_vec()), a()], "a PAX record is malformed"),
        (vec![x(b"\n9 path=b\n".to_vec()), a()], "a PAX record is malformed"),
        (vec![x(b"99999999999999999999 a=b\n".to_vec()), a()], "a PAX record is malformed"),
        (vec![x(b"2 \n".to_vec()), a()], "a PAX record is malformed"),
    ] {
        let refused = refusal(&tar(&members), &Layout::AsIs);
        assert!(refused.contains(reason), "{refused} / {reason}");
    }
    assert_eq!(lines(&tar(&[x(b"9 path=b\n".to_vec()), a()]), &Layout::AsIs), ["b = contents"]);
    let changed = |at: usize, bytes: &[u8]| {
        let mut member = a();
        member[at..at + bytes.len()].copy_from_slice(bytes);
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes().copy_from_slice(&member[..512]);
        header.set_cksum();
        [header.as_bytes(), &member[512..]].concat()
    };
    let size = |bytes: [u8; 4]| changed(124, &[&bytes[..], &[0, 0, 0, 0, 0, 0, 0, 8]].concat());
    assert_eq!(lines(&tar(&[size([0x80, 0, 0, 0])]), &Layout::AsIs), ["shop/", "shop/a = contents"]);
    for (archive, reason) in [
        (tar(&[size([0x80, 0, 0, 1])]), "`shop/a`, which has a size that is negative or too large"),
        (tar(&[size([0xff; 4])]), "`shop/a`, which has a size that is negative or too large"),
        (tar(&[changed(263, b"01")]), "`shop/a`, which has a header of an unknown version"),
        (tar(&[a(), vec![0; 512], file("shop/b", b"")]), "cannot be unpacked"),
        ([tar(&[a()]), tar(&[file("shop/b", b"")])].concat(), "something follows the end of the tar"),
    ] {
        let refused = refusal(&archive, &Layout::AsIs);
        assert!(refused.contains(reason), "{refused} / {reason}");
    }
}

#[test]
fn reasons_are_short_lines_whatever_the_archive_has() {
    let path = pax("path", &[0xff; 60_000]);
    let long = tar(&[member(b"pax", b'x', b"", &path), file("a", b"")]);
    let mut name = member(b"\x1b[2J\n", b'0', b"", b"");
    name[124..127].copy_from_slice(b"zzz");
    let mut checksum = file("a", b"");
    checksum[148..152].copy_from_slice(b"\x1b[2J");
    for archive in [long, tar(&[name]), tar(&[checksum])] {
        let reason = refusal(&archive, &Layout::AsIs);
        assert!(reason.len() < 900 && !reason.contains(char::is_control), "{reason:?}");
    }
}
