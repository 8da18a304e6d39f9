//! Two machines that share an object store (in memory) and no folder, and answers that are lost.

use super::*;
use crate::ErrorKind;
use crate::store::medium::EntryKind;
use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time of a lease.
const TTL: Duration = Duration::from_millis(600);

/// A server: objects, and writes whose answers are lost, after which the client tries again.
#[derive(Debug, Default)]
struct Server {
    objects: InMemory,
    /// Writes whose answers are lost.
    lost: AtomicUsize,
    is_blind: bool,
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a server")
    }
}

#[async_trait]
impl ObjectStore for Server {
    async fn put_opts(
        &self,
        at: &Path,
        bytes: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let options = if self.is_blind { PutOptions::default() } else { options };
        let put = self.objects.put_opts(at, bytes.clone(), options.clone()).await;
        let lose = |n: usize| n.checked_sub(1);
        if put.is_ok() && self.lost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lose).is_ok() {
            return self.objects.put_opts(at, bytes, options).await;
        }
        put
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.objects.get_opts(at, options).await
    }

    fn delete_stream(
        &self,
        places: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.objects.delete_stream(places)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

/// A machine with its own folder.
struct Machine {
    objects: Objects,
    folder: TempDir,
}

fn origin(server: &Arc<Server>) -> Origin {
    Origin::new(Box::new(server.clone()), Path::from("memories/v4"), "a server".into(), Arc::default())
        .expect("a thread")
}

fn enter(server: &Arc<Server>) -> Result<Machine> {
    let folder = tempfile::tempdir().expect("a folder");
    let front = Disk::open(folder.path().join("v4"), folder.path())?;
    Ok(Machine { objects: Objects::on(origin(server), TTL, front)?, folder })
}

fn machine(server: &Arc<Server>) -> Machine {
    enter(server).expect("a machine")
}

impl Machine {
    fn read(&self, name: &str) -> Result<Vec<u8>, Failure> {
        self.objects.open(name).and_then(|mut input| input.whole(99))
    }

    fn put(&self, name: &str, text: &str) -> Result<()> {
        self.objects.put(name, text.as_bytes())
    }
}

/// Kind of the error, if it is one.
fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|e| e.kind())
}

const BLOCK: &str = "blocks/ab/abc.safetensors";
const MANIFEST: &str = "manifests/m.log";

#[test]
fn what_one_machine_puts_another_reads() {
    let server = Arc::default();
    let (a, b) = (machine(&server), machine(&server));
    assert_eq!((b.read(BLOCK), b.objects.size(BLOCK)), (Err(Failure::Missing), None));
    assert!(a.objects.put_new(BLOCK, b"one").expect("a block"));
    // What is there stays, and is not sent again.
    assert!(!b.objects.put_new(BLOCK, b"one").expect("a block"));
    assert!(!a.objects.put_new(BLOCK, b"one").expect("a block"));
    assert_eq!((b.read(BLOCK), b.objects.size(BLOCK)), (Ok(b"one".to_vec()), Some(3)));
    a.put(MANIFEST, "first").expect("a manifest");
    assert_eq!(b.read(MANIFEST), Ok(b"first".to_vec()));
    b.put(MANIFEST, "second").expect("a manifest");
    assert_eq!(a.read(MANIFEST), Ok(b"second".to_vec()));
    assert_eq!(a.objects.list("blocks").expect("a list"), [(BLOCK.to_owned(), 3)]);
    // Leases are not listed as content.
    let listing = a.objects.listing().expect("a listing");
    let topmost: Vec<_> =
        listing("").expect("entries").into_iter().map(|entry| (entry.name, entry.kind)).collect();
    assert_eq!(topmost, [("blocks".into(), EntryKind::Folder), ("manifests".into(), EntryKind::Folder)]);
    assert_eq!(listing("blocks/ab").expect("entries").len(), 1);
    assert_eq!(listing("windows").expect("entries"), []);
    drop(listing);
    // Nothing grows.
    assert!(!a.objects.can_append(MANIFEST, 0));
    a.objects.append("tails/t", 0, b"rows").expect("a tail");
    assert!(a.objects.append("tails/t", 4, b"more").is_err());
    assert_eq!(b.read("tails/t"), Ok(b"rows".to_vec()));
    assert_eq!((b.objects.remove("tails/t").ok(), b.objects.remove("tails/t").ok()), (Some(4), Some(0)));
    // A copy in front says nothing about what is there.
    assert_eq!(a.objects.remove(BLOCK).ok(), Some(3));
    assert!(machine(&server).objects.size(BLOCK).is_none());
}

#[test]
fn copies_in_front_are_read_and_a_damaged_one_is_fetched_again() {
    let server = Arc::default();
    let (a, b) = (machine(&server), machine(&server));
    a.objects.put_new(BLOCK, b"one").expect("a block");
    b.read(BLOCK).expect("a block");
    let before = b.objects.traffic();
    assert_eq!(b.read(BLOCK), Ok(b"one".to_vec()));
    assert_eq!(b.objects.traffic(), before);
    let Machine { objects, folder } = b;
    drop(objects);
    files::write_atomically(&folder.path().join("v4").join(BLOCK), b"two").expect("a file");
    let front = Disk::open(folder.path().join("v4"), folder.path()).expect("a folder");
    let b = Machine { objects: Objects::on(origin(&server), TTL, front).expect("a store"), folder };
    assert_eq!(b.read(BLOCK), Ok(b"two".to_vec()));
    b.objects.set_aside(BLOCK).expect("a move");
    assert_eq!(b.read(BLOCK), Ok(b"one".to_vec()));
    // A file that was fetched and is damaged all the same is set aside in the store too, and kept.
    b.objects.set_aside(BLOCK).expect("a move");
    assert_eq!(machine(&server).read(BLOCK), Err(Failure::Missing));
    assert_eq!(a.objects.list("damaged").expect("a list").len(), 1);
}

#[test]
fn the_front_keeps_what_was_fetched_last() {
    let server = Arc::default();
    let a = machine(&server);
    let name = |n: usize| format!("blocks/0{n}/0{n}c.safetensors");
    for n in 0..4 {
        a.objects.put_new(&name(n), b"12345").expect("a block");
        let path = a.folder.path().join("v4").join(name(n));
        let file = std::fs::File::options().write(true).open(path).expect("a copy");
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(60 - 10 * n as u64))
            .expect("a time");
    }
    let front = Disk::at(&a.folder.path().join("v4"));
    front.trim(11).expect("a bound");
    let kept: Vec<_> = front.list("blocks").expect("a list").into_iter().map(|(name, _)| name).collect();
    assert_eq!(kept, [name(2), name(3)]);
    assert_eq!(a.read(&name(0)), Ok(b"12345".to_vec()));
}

#[test]
fn a_lease_is_one_machine_s_until_it_is_given_back_or_its_owner_is_gone() {
    let server = Arc::default();
    let (a, b) = (machine(&server), machine(&server));
    let lease = a.objects.lease("runs/r").expect("a lease");
    assert!(lease.is_some() && a.objects.lease("runs/r").expect("no lease").is_none());
    let began = Instant::now();
    assert!(b.objects.lease("runs/r").expect("no lease").is_none());
    assert!(began.elapsed() < TTL, "a renewal tells");
    thread::sleep(2 * TTL);
    assert!(b.objects.lease("runs/r").expect("no lease").is_none(), "it is renewed");
    drop(lease);
    let lease = b.objects.lease("runs/r").expect("a lease");
    assert!(lease.is_some());
    // One that is not renewed.
    origin(&server).put("runs/dead", b"someone 3\n", PutMode::Create).expect("a lease");
    let began = Instant::now();
    assert!(a.objects.lease("runs/dead").expect("a lease").is_some());
    assert!(began.elapsed() >= TTL);
}

#[test]
fn the_loser_of_a_lease_overwrites_nothing() {
    let server = Arc::default();
    let (a, b) = (machine(&server), machine(&server));
    let lease = a.objects.lease("runs/r").expect("a lease");
    a.put(MANIFEST, "first").expect("a manifest");
    // A person has removed the lease, so that another machine continues.
    origin(&server).remove("runs/r").expect("a removal");
    let another = b.objects.lease("runs/r").expect("a lease");
    assert!(lease.is_some() && another.is_some());
    b.read(MANIFEST).expect("a manifest");
    b.put(MANIFEST, "second").expect("a manifest");
    thread::sleep(TTL);
    assert_eq!(kind(a.put(MANIFEST, "third")), Some(ErrorKind::InUse));
    assert_eq!(a.read(MANIFEST), Ok(b"second".to_vec()));
    // By now it knows the version that is there, and could replace it.
    let confirmed = |lease: &Option<Lease>| lease.as_ref().expect("a lease").confirm();
    assert_eq!((kind(confirmed(&lease)), kind(confirmed(&another))), (Some(ErrorKind::InUse), None));
    assert!(lease.as_ref().is_some_and(|lease| lease.is_taken()));
    // Its lease is another's by now: that stays.
    drop(lease);
    assert!(machine(&server).objects.lease("runs/r").expect("no lease").is_none());
    // The holder of the right to write does so, whatever others wrote meanwhile.
    origin(&server).put(MANIFEST, b"intruder", PutMode::Overwrite).expect("a manifest");
    b.put(MANIFEST, "fourth").expect("a manifest");
    assert_eq!(b.read(MANIFEST), Ok(b"fourth".to_vec()));
}

#[test]
fn cleaning_is_exclusive() {
    let server = Arc::default();
    let (a, b) = (machine(&server), machine(&server));
    let run = b.objects.lease("runs/r").expect("a lease");
    assert!(a.objects.alone().expect("no lease").is_none(), "another machine is at work");
    drop((run, b));
    // The remains of dead processes are removed.
    for name in ["users/dead", "runs/dead"] {
        origin(&server).put(name, b"someone 3\n", PutMode::Create).expect("a lease");
    }
    let alone = a.objects.alone().expect("a lease");
    assert!(alone.is_some());
    assert_eq!(origin(&server).list("runs").expect("a list"), []);
    assert_eq!(origin(&server).list("users").expect("a list").len(), 1);
    assert_eq!(kind(enter(&server)), Some(ErrorKind::InUse));
    drop(alone);
    machine(&server);
}

#[test]
fn a_process_that_was_taken_for_dead_writes_no_manifest() {
    let server = Arc::default();
    let a = machine(&server);
    a.put(MANIFEST, "first").expect("a manifest");
    let user = origin(&server).list("users").expect("a list").remove(0).0;
    // Another process cleaned while this one was away.
    origin(&server).remove(&user).expect("a removal");
    thread::sleep(TTL);
    assert_eq!(kind(a.put(MANIFEST, "second")), Some(ErrorKind::Store));
    assert_eq!(a.read(MANIFEST), Ok(b"first".to_vec()));
}

#[test]
fn answers_that_are_lost_change_nothing() {
    let server = Arc::new(Server::default());
    let lose = || server.lost.store(1, Ordering::Relaxed);
    lose();
    let (a, b) = (machine(&server), machine(&server));
    lose();
    assert!(!a.objects.put_new(BLOCK, b"one").expect("a block"), "it looks as if another had put it");
    assert_eq!(b.read(BLOCK), Ok(b"one".to_vec()));
    lose();
    let lease = a.objects.lease("runs/r").expect("a lease");
    assert!(lease.is_some());
    for text in ["first", "second"] {
        lose();
        a.put(MANIFEST, text).expect("a manifest");
        assert_eq!(b.read(MANIFEST), Ok(text.into()));
    }
    // Renewals, too.
    server.lost.store(2, Ordering::Relaxed);
    thread::sleep(2 * TTL);
    assert!(b.objects.lease("runs/r").expect("no lease").is_none());
    a.put(MANIFEST, "third").expect("a manifest");
}

#[test]
fn a_server_that_is_blind_to_conditions_is_refused() {
    let server = Arc::new(Server { is_blind: true, ..Server::default() });
    let refused = enter(&server).err().expect("a refusal");
    assert!(refused.to_string().contains("ignores If-None-Match"), "{refused}");
    assert_eq!(origin(&server).list("users").expect("a list"), []);
}
