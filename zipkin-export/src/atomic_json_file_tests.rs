use super::*;
use serde_json::{Value, json};

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn file_is_a_list_after_each_append_and_is_renamed_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("x.json");
    let mut file = AtomicJsonFile::open(&target).unwrap();
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
fn existing_file_stays_until_the_new_one_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("x.json");
    fs::write(&target, "before").unwrap();
    let mut file = AtomicJsonFile::open(&target).unwrap();
    file.append(b"1").unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"before");
    file.publish().unwrap();
    assert_eq!(read(&target), json!([1]));
}

#[test]
fn concurrent_run_is_rejected_and_leftover_of_killed_run_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("x.json");
    let mut first = AtomicJsonFile::open(&target).unwrap();
    first.append(b"\"a long span of the first run\"").unwrap();
    assert!(matches!(AtomicJsonFile::open(&target), Err(FileError::Busy(_))));
    drop(first);
    let second = AtomicJsonFile::open(&target).unwrap();
    assert_eq!(read(second.path()), json!([]));
}

#[test]
fn symbolic_link_is_preserved() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real.json"), dir.path().join("link.json"));
    fs::write(&real, "").unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    AtomicJsonFile::open(&link).unwrap().publish().unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(read(&real), json!([]));
}

#[test]
fn non_regular_file_is_an_error_at_open() {
    let dir = tempfile::tempdir().unwrap();
    // A rename over a device would replace it.
    for other in [dir.path(), Path::new("/dev/null"), Path::new("..")] {
        assert!(matches!(AtomicJsonFile::open(other), Err(FileError::NotAFile(_))), "{other:?}");
    }
    fs::write(dir.path().join("file"), "").unwrap();
    for refused in ["no/such/dir.json", "file/below.json", &"long".repeat(100)] {
        let error = AtomicJsonFile::open(&dir.path().join(refused)).err().unwrap();
        assert!(matches!(error, FileError::Io { .. }), "{refused}: {error}");
        assert!(error.to_string().contains("cannot write"));
    }
}

#[test]
fn resumed_file_continues_after_the_last_complete_span() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("x.json");
    let mut first = AtomicJsonFile::resume(&target).unwrap();
    first.append(b"{\"a\":1},\n{\"a\":2}").unwrap();
    first.publish().unwrap();
    let mut second = AtomicJsonFile::resume(&target).unwrap();
    assert!(!target.exists(), "it grows");
    assert!(matches!(AtomicJsonFile::resume(&target), Err(FileError::Busy(_))));
    second.append(b"{\"a\":3}").unwrap();
    assert_eq!(read(second.path()), json!([{"a": 1}, {"a": 2}, {"a": 3}]));
    let (path, whole) = (second.path().to_owned(), fs::read(second.path()).unwrap());
    drop(second);
    // A run killed at any byte of its last write, which overwrites the closing bracket.
    for written in 0..whole.len() {
        fs::write(&path, &whole[..written]).unwrap();
        let mut next = AtomicJsonFile::resume(&target).unwrap();
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
    let both = AtomicJsonFile::resume(&target).err().unwrap();
    assert!(matches!(both, FileError::Conflict { .. }) && both.to_string().contains("move one"), "{both}");
}

#[test]
fn long_partial_span_is_truncated() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("x.json");
    let part = format!("[\n{{\"a\":1}},\n{{\"a\":\"{}", "x".repeat(200_000));
    fs::write(dir.path().join("x.json.partial"), part).unwrap();
    let file = AtomicJsonFile::resume(&target).unwrap();
    assert_eq!(read(file.path()), json!([{"a": 1}]));
}
