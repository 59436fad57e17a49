//! Each bound, with the key to raise it.

use super::*;

#[test]
fn each_bound_is_named() {
    let a = file("shop/a", &[0; 4000]);
    let whole = tar(std::slice::from_ref(&a));
    let over = |archive: &[u8], bounds: &Bounds| unpacked(archive, &Layout::StripTop, bounds).unwrap_err().to_string();
    for archive in [whole.clone(), gzip(&whole), zstd(&whole, 17)] {
        let fits = archive.len() as u64;
        assert!(unpacked(&archive, &Layout::StripTop, &Bounds { max_archive: fits, ..BOUNDS }).is_ok());
        let reason = over(&archive, &Bounds { max_archive: fits - 1, ..BOUNDS });
        assert!(reason.contains(&format!("more than `[upstreams] max_chart` = {} bytes", fits - 1)), "{reason}");
        let fits = whole.len() as u64;
        assert!(unpacked(&archive, &Layout::StripTop, &Bounds { max_unpacked: fits, ..BOUNDS }).is_ok());
        let reason = over(&archive, &Bounds { max_unpacked: fits - 1, ..BOUNDS });
        assert!(reason.contains(&format!("to more than `[upstreams] max_unpacked` = {} bytes", fits - 1)), "{reason}");
        assert!(unpacked(&archive, &Layout::StripTop, &Bounds { max_file: 4000, ..BOUNDS }).is_ok());
        let reason = over(&archive, &Bounds { max_file: 3999, ..BOUNDS });
        assert_eq!(reason, "has the file `shop/a` of 4000 bytes, more than `[limits] max_file` = 3999");
    }
    let links = (0..20).map(|number| member(format!("shop/{number}").as_bytes(), b'1', b"shop/a", b""));
    let linked = tar(&[a.clone()].into_iter().chain(links).collect::<Vec<_>>());
    let reason = over(&linked, &Bounds { max_unpacked: 70_000, ..BOUNDS });
    assert!(reason.contains("`[upstreams] max_unpacked` = 70000 bytes"), "{reason}");
    let name = Layout::OneFile(super::super::FilePath::new("app.wasm").unwrap());
    assert!(unpacked(&a, &name, &Bounds { max_file: a.len() as u64, ..BOUNDS }).is_ok());
    let reason = unpacked(&a, &name, &Bounds { max_file: 100, ..BOUNDS }).unwrap_err().to_string();
    assert!(reason.contains("`app.wasm`"), "{reason}");
}

#[test]
fn a_bomb_ends_at_the_bound_of_what_is_written() {
    let mut header = tar::Header::new_ustar();
    header.set_path("shop/zeros").unwrap();
    header.set_mode(0o644);
    header.set_size(16 << 20);
    header.set_cksum();
    let zeros = [header.as_bytes().to_vec(), vec![0; 16 << 20]].concat();
    let bounds = Bounds { max_unpacked: 1 << 20, ..BOUNDS };
    for bomb in [gzip(&zeros), zstd(&zeros, 20)] {
        assert!(bomb.len() < 250_000);
        let mut contents = Vec::new();
        let error = unpack(&bomb[..], &Layout::AsIs, &bounds, &RUN, &mut contents).unwrap_err();
        assert!(matches!(error, ArchiveError::UnpacksTooLarge(_)), "{error}");
        assert!(contents.len() <= 1 << 20);
    }
    // The same after the end of the tar, where no member asks for it.
    let behind = gzip(&[tar(&[file("a", b"")]), vec![0; 2 << 20]].concat());
    assert!(matches!(unpacked(&behind, &Layout::AsIs, &bounds), Err(ArchiveError::UnpacksTooLarge(_))));
}

#[test]
fn entries_paths_records_and_windows_have_bounds() {
    let record = |size: usize| {
        let path = pax("comment", &vec![b'x'; size - "65536 comment=\n".len()]);
        assert_eq!(path.len(), size);
        tar(&[member(b"pax", b'x', b"", &path), file("a", b"")])
    };
    assert_eq!(lines(&record(64 << 10), &Layout::AsIs), ["a = "]);
    assert_eq!(refusal(&record((64 << 10) + 1), &Layout::AsIs), "has a PAX or GNU record of more than 65536 bytes");
    let long_name = tar(&[member(b"", b'L', b"", &vec![b'a'; 70_000]), file("a", b"")]);
    assert!(refusal(&long_name, &Layout::AsIs).contains("more than 65536 bytes"));

    // With the directories: 50,000 files in as many directories.
    let many = |files: usize| {
        let names = (0..files).map(|number| format!("{number}/a"));
        gzip(&tar(&names.map(|name| file(&name, b"")).collect::<Vec<_>>()))
    };
    assert_eq!(unpacked(&many(50_000), &Layout::AsIs, &BOUNDS).unwrap().0.below(b"").count(), 100_000);
    assert_eq!(refusal(&many(50_001), &Layout::AsIs), "has more than 100000 files and directories");

    // 2,000 directories in each other, with paths of 2 to 4,000 bytes: 4 MB each.
    let deep = |files: usize| {
        let member = |number: usize| {
            let path = [vec![b'a' + number as u8, b'/'], b"x/".repeat(2000), vec![b'y']].concat();
            [member(b"pax", b'x', b"", &pax("path", &path)), file("a", b"")].concat()
        };
        tar(&(0..files).map(member).collect::<Vec<_>>())
    };
    assert!(unpacked(&deep(4), &Layout::AsIs, &BOUNDS).is_ok());
    assert_eq!(refusal(&deep(5), &Layout::AsIs), "has more than 16777216 bytes of paths");

    let large = tar(&[file("a", &vec![1; 9 << 20])]);
    assert!(unpacked(&zstd(&large, 23), &Layout::AsIs, &BOUNDS).is_ok());
    assert!(refusal(&zstd(&large, 24), &Layout::AsIs).starts_with("cannot be unpacked: "));
}

#[test]
fn an_interrupt_ends_a_reading() {
    let stop = AtomicBool::new(true);
    let error = unpack(&tar(&[file("a", b"")])[..], &Layout::AsIs, &BOUNDS, &stop, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, ArchiveError::Interrupted) && !error.is_in_archive());
}
