//! Tests of the content of the reject files.

use super::*;
use pgsluice_core::scan::{Dialect, StrayQuotes};

fn reject() -> Reject {
    Reject {
        file: "x.csv".into(),
        record: 7,
        line: 9,
        offset: 120,
        length: 3,
        lines: 2,
        column: Some("b".into()),
        sqlstate: "22P02".into(),
        message: "invalid input syntax for type integer: \"\n\"".into(),
        detail: None,
    }
}

#[test]
fn an_existing_file_is_refused_and_left_as_it_was() {
    let dir = std::env::temp_dir().join(format!("pgsluice-reject-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("bad.csv");
    std::fs::write(side_path(&path), "kept").unwrap();
    let csv = Dialect::csv();
    let error =
        RejectFile::create(&path, Existing::Error, RejectForm::Lines(&csv, None)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert!(!path.exists());
    assert_eq!(std::fs::read_to_string(side_path(&path)).unwrap(), "kept");
    std::fs::remove_file(side_path(&path)).unwrap();

    let header = RejectForm::Lines(&csv, Some(b"a,b\r\n"));
    let mut file = RejectFile::create(&path, Existing::Error, header).unwrap();
    let reject = reject();
    file.add(&reject, b"1,\xff", Eol::CrNl).unwrap();
    file.add(&reject, b"2,\"\n\"\n", Eol::Nl).unwrap();
    file.sync().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"a,b\r\n1,\xff\r\n2,\"\n\"\r\n");
    let side = std::fs::read_to_string(side_path(&path)).unwrap();
    let lines: Vec<serde_json::Value> =
        side.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["sqlstate"], "22P02");
    assert_eq!(lines[0]["offset"], 120);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A folder may be writable but not readable, and some file systems cannot synchronize a folder.
#[test]
fn a_folder_that_cannot_be_read_is_no_error() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let passes = |code| super::file::cannot_be_synced(&io::Error::from_raw_os_error(code));
    assert!([libc::EACCES, libc::EBADF, libc::EINVAL].into_iter().all(passes));
    assert!(![libc::EIO, libc::ENOSPC, libc::ENOENT].into_iter().any(passes));
    let dir = std::env::temp_dir().join(format!("pgsluice-unread-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    if dir.metadata().unwrap().uid() == 0 {
        return; // can read any
    }
    let (path, csv) = (dir.join("bad.csv"), Dialect::csv());
    std::fs::set_permissions(&dir, fs::Permissions::from_mode(0o300)).unwrap();
    check_free(&path, Existing::Error).unwrap();
    let form = RejectForm::Lines(&csv, None);
    let synced = RejectFile::create(&path, Existing::Error, form).unwrap().sync();
    std::fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    synced.unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}

/// The reasons are made durable before the records. If that fails, no record is written, either.
#[test]
fn reasons_are_durable_before_their_records() {
    let dir = std::env::temp_dir().join(format!("pgsluice-order-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (path, csv) = (dir.join("bad.csv"), Dialect::csv());
    std::os::unix::fs::symlink("/dev/full", side_path(&path)).unwrap();
    let form = RejectForm::Lines(&csv, None);
    let mut file = RejectFile::create(&path, Existing::Append, form).unwrap();
    file.add(&reject(), b"1,x\n", Eol::Nl).unwrap();
    assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    drop(file);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn no_record_closes_the_quote_of_another() {
    let dir = std::env::temp_dir().join(format!("pgsluice-open-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("bad.csv");
    let csv = Dialect::csv();
    let mut file =
        RejectFile::create(&path, Existing::Error, RejectForm::Lines(&csv, Some(b"a,b\n")))
            .unwrap();
    let long = [&b"6,\""[..], &[b'x'; 200]].concat();
    let records =
        [&b"1,\"x\n"[..], b"2,\"y\"\n", b"3,z", b"4,\"x\"y\"", b"5,w\n", &long[..], b"7,\"v"];
    for bytes in records {
        let reject = Reject { length: bytes.len() as u64, ..reject() };
        match bytes.len() {
            0..=100 => file.add(&reject, bytes, Eol::Nl).unwrap(),
            _ => file.add_from(&reject, &mut &*bytes, Eol::Nl).unwrap(),
        }
    }
    file.sync().unwrap();
    let kept = [
        ("bad.csv", b"a,b\n1,\"x\n2,\"y\"\n3,z\n".to_vec(), 3),
        ("bad.csv.2", b"a,b\n4,\"x\"y\"\n5,w\n".to_vec(), 2),
        ("bad.csv.3", [b"a,b\n", &long[..], b"\n"].concat(), 1),
        ("bad.csv.4", b"a,b\n7,\"v\n".to_vec(), 1),
    ];
    for (name, bytes, count) in kept {
        let path = dir.join(name);
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name}");
        let side = std::fs::read_to_string(side_path(&path)).unwrap();
        assert_eq!(side.lines().count(), count, "{name}");
    }
    assert!(file.more().unwrap().contains("bad.csv.4"));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_long_record_is_appended_where_no_quote_can_stay_open() {
    let dir = std::env::temp_dir().join(format!("pgsluice-long-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("bad.csv");
    let strict = Dialect { stray_quotes: StrayQuotes::Error, ..Dialect::csv() };
    for (dialect, files) in [(strict, 1), (Dialect::text(), 1), (Dialect::csv(), 2)] {
        std::fs::write(&path, "1,x\n").unwrap();
        let form = RejectForm::Lines(&dialect, None);
        let mut file = RejectFile::create(&path, Existing::Append, form).unwrap();
        let long = [&b"2,"[..], &[b'y'; 200], b"\n"].concat();
        let reject = Reject { length: long.len() as u64, ..reject() };
        file.add_from(&reject, &mut &long[..], Eol::Nl).unwrap();
        file.sync().unwrap();
        assert_eq!((numbered(&path, 2).exists(), file.more().is_some()), (files > 1, files > 1));
        let first = std::fs::read(&path).unwrap();
        assert_eq!(first == [b"1,x\n", &long[..]].concat(), files == 1);
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Rejects are appended to what an earlier load has left, in new files if a quote can stay open in
/// those, and without a header if the source has none.
#[test]
fn rejects_are_appended_to_those_of_earlier_loads() {
    let dir = std::env::temp_dir().join(format!("pgsluice-append-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("bad.csv");
    let csv = Dialect { delimiter: b';', ..Dialect::csv() };
    // The line names the delimiter and is no header.
    let form = || RejectForm::Lines(&csv, Some(b"sep=;\n"));
    for records in [&[&b"1;\"x\n"[..], b"2;\"y\n"][..], &[b"3;\"z\n"]] {
        let mut file = RejectFile::create(&path, Existing::Append, form()).unwrap();
        file.check_header().unwrap();
        for bytes in records {
            let reject = Reject { length: bytes.len() as u64, ..reject() };
            file.add(&reject, bytes, Eol::Nl).unwrap();
        }
        file.sync().unwrap();
    }
    for (name, record) in [("bad.csv", "1;\"x"), ("bad.csv.2", "2;\"y"), ("bad.csv.3", "3;\"z")] {
        let bytes = std::fs::read_to_string(dir.join(name)).unwrap();
        assert_eq!(bytes, format!("sep=;\n{record}\n"), "{name}");
    }
    let other = RejectForm::Lines(&csv, Some(b"sep=;\na;b\n"));
    let error = RejectFile::create(&path, Existing::Append, other).unwrap().check_header();
    assert_eq!(error.unwrap_err().kind(), io::ErrorKind::InvalidData);
    std::fs::remove_dir_all(&dir).unwrap();
}
