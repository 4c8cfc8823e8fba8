use super::*;
use serde_json::{Value, json};

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn it_is_a_list_after_every_append_and_has_its_final_name_only_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("x.json");
    let mut file = PartialFile::open(&target).unwrap();
    assert_eq!(file.path(), dir.path().join("x.json.partial"));
    assert_eq!(read(file.path()), json!([]));
    file.append(b"1,\n2").unwrap();
    assert_eq!(read(file.path()), json!([1, 2]));
    file.append(b"3").unwrap();
    assert_eq!(read(file.path()), json!([1, 2, 3]));
    assert!(!target.exists());
    file.publish().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"[\n1,\n2,\n3\n]\n");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn the_file_of_that_name_stays_until_the_new_one_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("x.json");
    fs::write(&target, "before").unwrap();
    let mut file = PartialFile::open(&target).unwrap();
    file.append(b"1").unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"before");
    file.publish().unwrap();
    assert_eq!(read(&target), json!([1]));
}

#[test]
fn a_second_run_with_this_target_is_told_and_what_a_killed_one_left_is_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("x.json");
    let mut first = PartialFile::open(&target).unwrap();
    first.append(b"\"a long span of the first run\"").unwrap();
    assert!(matches!(PartialFile::open(&target), Err(FileError::Busy(_))));
    drop(first);
    let second = PartialFile::open(&target).unwrap();
    assert_eq!(read(second.path()), json!([]));
}

#[test]
fn a_link_stays_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real.json"), dir.path().join("link.json"));
    fs::write(&real, "").unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    PartialFile::open(&link).unwrap().publish().unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(read(&real), json!([]));
}

#[test]
fn what_cannot_be_a_file_is_an_error_at_once() {
    let dir = tempfile::tempdir().unwrap();
    // A rename over a device would replace it.
    for other in [dir.path(), Path::new("/dev/null"), Path::new("..")] {
        assert!(matches!(PartialFile::open(other), Err(FileError::NotAFile(_))), "{other:?}");
    }
    fs::write(dir.path().join("file"), "").unwrap();
    for refused in ["no/such/dir.json", "file/below.json", &"long".repeat(100)] {
        let error = PartialFile::open(&dir.path().join(refused)).err().unwrap();
        assert!(matches!(error, FileError::Refused { .. }), "{refused}: {error}");
        assert!(error.to_string().contains("cannot write"));
    }
}

#[test]
fn a_resumed_file_goes_on_behind_what_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("x.json");
    let mut first = PartialFile::resume(&target).unwrap();
    first.append(b"{\"a\":1},\n{\"a\":2}").unwrap();
    first.publish().unwrap();
    let mut second = PartialFile::resume(&target).unwrap();
    assert!(!target.exists(), "it grows");
    assert!(matches!(PartialFile::resume(&target), Err(FileError::Busy(_))));
    second.append(b"{\"a\":3}").unwrap();
    assert_eq!(read(second.path()), json!([{"a": 1}, {"a": 2}, {"a": 3}]));
    let (path, whole) = (second.path().to_owned(), fs::read(second.path()).unwrap());
    drop(second);
    // A run that was killed at any byte of its last write, which went over the closing bracket.
    for written in 0..whole.len() {
        fs::write(&path, &whole[..written]).unwrap();
        let mut next = PartialFile::resume(&target).unwrap();
        let spans = read(&path).as_array().unwrap().len();
        next.append(b"{\"a\":9}").unwrap();
        let list = read(&path);
        assert_eq!(
            (list.as_array().unwrap().len(), &list[spans]),
            (spans + 1, &json!({"a": 9})),
            "{written}"
        );
    }
    fs::write(&target, "[]").unwrap();
    let both = PartialFile::resume(&target).err().unwrap();
    assert!(matches!(both, FileError::Both { .. }) && both.to_string().contains("move one"), "{both}");
}

#[test]
fn a_long_piece_of_a_span_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("x.json");
    let part = format!("[\n{{\"a\":1}},\n{{\"a\":\"{}", "x".repeat(200_000));
    fs::write(dir.path().join("x.json.partial"), part).unwrap();
    let file = PartialFile::resume(&target).unwrap();
    assert_eq!(read(file.path()), json!([{"a": 1}]));
}
