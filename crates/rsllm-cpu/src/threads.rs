//! The only place with threads: one persistent pool, jobs handed over by an epoch counter.
//!
//! A decode step runs a few hundred operations of tens of microseconds, so workers spin a while for the next job before
//! they sleep. The calling thread takes part in every job, and a job is cut into pieces. Each thread takes those of its own
//! share first, one behind the other, so that what it asks the memory for in advance is what it reads next; then whoever is there
//! takes what others have left: a worker that lost its processor to another program is not waited for unless it has begun a
//! piece. A pool of one thread has no workers at all.

#![expect(
    unsafe_code,
    reason = "a job borrows the caller's stack; the pool waits for it before returning"
)]

use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A worker panicked inside a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkerPanicked;

/// A fixed number of threads that run one job at a time. A clone is a handle to the same threads, for several backends that one
/// thread uses in turn.
#[derive(Clone)]
pub(crate) struct ThreadPool {
    team: Arc<Team>,
}

struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One a thread.
    cursors: Box<[Cursor]>,
    /// A job runs: another one now, of another handle, would be a mistake.
    is_busy: AtomicBool,
}

/// The next item of a thread's share, on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Cursor(AtomicUsize);

type Job = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Number of the newest job in the upper half; [`CLOSED`] and the workers inside it in the lower.
    state: AtomicU64,
    /// The newest job; read by workers that have entered it.
    job: UnsafeCell<Option<Job>>,
    panicked: AtomicBool,
    stop: AtomicBool,
    /// Workers asleep on `wake`.
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

/// Set in `state` when all pieces are taken: late workers stay out.
const CLOSED: u64 = 1 << 31;

fn epoch(state: u64) -> u32 {
    (state >> 32) as u32
}

// SAFETY: `job` is written only by the owner of the pool while the previous job is closed and empty, and read only by
// workers that have entered the newest job, which they can only after the write (release store, acquire exchange).
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` is only dereferenced while the caller of `run` keeps the closure alive.
unsafe impl Send for Shared {}

/// Spins before a worker sleeps: about 100 µs, longer than the gaps between operations of a step.
const SPINS_BEFORE_SLEEP: u32 = 4_000;

impl ThreadPool {
    /// A pool of `n_threads` threads including the caller.
    pub(crate) fn new(n_threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(CLOSED),
            job: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut team = Team {
            shared,
            workers: Vec::new(),
            cursors: (0..n_threads.max(1)).map(|_| Cursor::default()).collect(),
            is_busy: AtomicBool::new(false),
        };
        for index in 1..n_threads {
            let shared = Arc::clone(&team.shared);
            let worker = std::thread::Builder::new()
                .name(format!("rsllm-cpu-{index}"))
                .spawn(move || work(&shared, index))?;
            team.workers.push(worker);
        }
        Ok(Self {
            team: Arc::new(team),
        })
    }

    /// Threads that take part in a job.
    pub(crate) fn n_threads(&self) -> usize {
        self.team.n_threads()
    }

    /// Run `job(range, thread_index)` over `0..n_items` in pieces of at most `piece`: each thread its share of neighbouring items,
    /// as many as the others, and then what it finds of their shares.
    ///
    /// # Panics
    /// If another handle to the same threads runs a job meanwhile.
    pub(crate) fn run_pieces(
        &mut self,
        n_items: usize,
        piece: usize,
        job: impl Fn(Range<usize>, usize) + Sync,
    ) -> Result<(), WorkerPanicked> {
        self.run_shrinking(n_items, [piece, piece], job)
    }

    /// As [`Self::run_pieces`], with half of what is left of a share as a piece, but at least the first and at most the second
    /// number of `sizes`: large pieces have few ends, and small ones keep nobody waiting at the end.
    ///
    /// # Panics
    /// As [`Self::run_pieces`].
    pub(crate) fn run_shrinking(
        &mut self,
        n_items: usize,
        sizes: [usize; 2],
        job: impl Fn(Range<usize>, usize) + Sync,
    ) -> Result<(), WorkerPanicked> {
        let [least, most] = sizes.map(|size| size.max(1));
        if n_items <= least {
            // Not worth waking anybody.
            return catch_unwind(AssertUnwindSafe(|| {
                if n_items > 0 {
                    job(0..n_items, 0);
                }
            }))
            .map_err(|_| WorkerPanicked);
        }
        let team = &*self.team;
        let was_busy = team.is_busy.swap(true, Ordering::Acquire);
        assert!(!was_busy, "the threads run a job of another backend");
        let result = team.run_shares(n_items, [least, most], &job);
        team.is_busy.store(false, Ordering::Release);
        result
    }
}

impl Team {
    fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Run `job(thread_index)` on this thread and on every worker that arrives before this thread is done, and wait for
    /// those. The job must share its work out itself.
    ///
    /// Nobody else may run a job of the team meanwhile, which [`ThreadPool::run_pieces`] sees to.
    fn run(&self, job: &(dyn Fn(usize) + Sync)) -> Result<(), WorkerPanicked> {
        if self.workers.is_empty() {
            return catch_unwind(AssertUnwindSafe(|| job(0))).map_err(|_| WorkerPanicked);
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Workers use the pointer while they are inside the job, and this function
        // closes the job and waits for them below before `job` goes out of scope, even when its own part panics.
        let job_pointer: Job = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(job)
        };
        // SAFETY: the previous job is closed and empty (awaited by the previous call, and there is no other), so no worker
        // reads the cell.
        unsafe { *shared.job.get() = Some(job_pointer) };
        let next = epoch(shared.state.load(Ordering::Relaxed)).wrapping_add(1);
        shared.state.store(u64::from(next) << 32, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
            shared.wake.notify_all();
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        shared.state.fetch_or(CLOSED, Ordering::SeqCst);
        let mut spins = 0u32;
        while shared.state.load(Ordering::Acquire) & (CLOSED - 1) != 0 {
            spins += 1;
            if spins < SPINS_BEFORE_SLEEP {
                std::hint::spin_loop();
            } else {
                // The worker lost its processor in the middle of a piece: let it run.
                std::thread::yield_now();
            }
        }
        let worker_panicked = shared.panicked.swap(false, Ordering::Relaxed);
        if own.is_err() || worker_panicked {
            Err(WorkerPanicked)
        } else {
            Ok(())
        }
    }

    fn run_shares(
        &self,
        n_items: usize,
        [least, most]: [usize; 2],
        job: &(impl Fn(Range<usize>, usize) + Sync),
    ) -> Result<(), WorkerPanicked> {
        let n_threads = self.n_threads();
        let share = |thread: usize| thread * n_items / n_threads;
        for (thread, cursor) in self.cursors.iter().enumerate() {
            cursor.0.store(share(thread), Ordering::Relaxed);
        }
        self.run(&|thread| {
            for owner in (thread..n_threads).chain(0..thread) {
                while let Some(piece) = self.cursors[owner].take(share(owner + 1), least, most) {
                    job(piece, thread);
                }
            }
        })
    }
}

impl Cursor {
    /// The next piece before `end`.
    fn take(&self, end: usize, least: usize, most: usize) -> Option<Range<usize>> {
        let mut start = self.0.load(Ordering::Relaxed);
        while start < end {
            let left = end - start;
            let next = start + (left / 2).clamp(least, most.max(least)).min(left);
            match self
                .0
                .compare_exchange_weak(start, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(start..next),
                Err(now) => start = now,
            }
        }
        None
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _guard = self
                .shared
                .lock
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker catches panics of its jobs, so this cannot be an error worth reporting.
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    while wait_for_job(shared, &mut seen) {
        // SAFETY: this worker has entered the newest job, so the cell holds it and is not written until it leaves.
        let job = unsafe { *shared.job.get() };
        if let Some(job) = job {
            // SAFETY: `run` keeps the closure alive until every worker has left.
            let job = unsafe { &*job };
            if catch_unwind(AssertUnwindSafe(|| job(index))).is_err() {
                shared.panicked.store(true, Ordering::Relaxed);
            }
        }
        shared.state.fetch_sub(1, Ordering::Release);
    }
}

/// Enter the next job after `seen`, spinning first, then sleeping; false when the pool ends.
fn wait_for_job(shared: &Shared, seen: &mut u32) -> bool {
    let mut spins = 0;
    loop {
        if enter(shared, seen) {
            return true;
        }
        if shared.stop.load(Ordering::SeqCst) {
            return false;
        }
        spins += 1;
        if spins < SPINS_BEFORE_SLEEP {
            std::hint::spin_loop();
            continue;
        }
        spins = 0;
        let guard = shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
        shared.sleepers.fetch_add(1, Ordering::SeqCst);
        // Looked at after announcing the sleep, and `run` looks for sleepers after storing the job: one sees the other.
        let nothing_new = epoch(shared.state.load(Ordering::SeqCst)) == *seen;
        if nothing_new && !shared.stop.load(Ordering::SeqCst) {
            drop(
                shared
                    .wake
                    .wait(guard)
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
        shared.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Enter the newest job if it is not `seen` yet and still open.
fn enter(shared: &Shared, seen: &mut u32) -> bool {
    let mut state = shared.state.load(Ordering::Acquire);
    while epoch(state) != *seen {
        if state & CLOSED != 0 {
            *seen = epoch(state);
            return false;
        }
        match shared.state.compare_exchange_weak(
            state,
            state + 1,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => {
                *seen = epoch(state);
                return true;
            }
            Err(now) => state = now,
        }
    }
    false
}

/// A slice that several threads write to in disjoint ranges.
pub(crate) struct SharedSlice<'a, T> {
    pointer: *mut T,
    len: usize,
    marker: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: access is through `range`, whose caller promises disjoint ranges; T moves between threads.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self {
            pointer: slice.as_mut_ptr(),
            len: slice.len(),
            marker: std::marker::PhantomData,
        }
    }

    /// Where a value lies, for hints.
    pub(crate) fn address(&self, index: usize) -> *const T {
        self.pointer.wrapping_add(index)
    }

    /// # Safety
    /// No two live results overlap, on any thread.
    pub(crate) unsafe fn range(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "range {range:?} outside slice of {}",
            self.len
        );
        // SAFETY: in bounds (asserted), and disjoint from every other live range by the caller's promise.
        unsafe {
            std::slice::from_raw_parts_mut(self.pointer.add(range.start), range.end - range.start)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_runs_once_on_any_number_of_threads() {
        for n_threads in [1, 2, 5] {
            let mut pool = ThreadPool::new(n_threads).unwrap();
            assert_eq!(pool.n_threads(), n_threads);
            for n_items in [0, 1, 7, 100, 1000] {
                let hits: Vec<AtomicUsize> = (0..n_items).map(|_| AtomicUsize::new(0)).collect();
                for _ in 0..20 {
                    pool.run_pieces(n_items, 3, |range, _| {
                        for i in range {
                            hits[i].fetch_add(1, Ordering::Relaxed);
                        }
                    })
                    .unwrap();
                }
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 20));
            }
        }
    }

    #[test]
    fn pieces_shrink_to_the_least_towards_the_end_of_a_share() {
        let cursor = Cursor::default();
        let pieces: Vec<_> = std::iter::from_fn(|| cursor.take(103, 4, 30)).collect();
        let lens: Vec<usize> = pieces.iter().map(ExactSizeIterator::len).collect();
        assert_eq!(lens, [30, 30, 21, 11, 5, 4, 2]);
        assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(cursor.take(103, 4, 30), None);
    }

    #[test]
    fn a_thread_takes_its_own_share_in_order_before_others() {
        let n_threads = 3;
        let mut pool = ThreadPool::new(n_threads).unwrap();
        for n_items in [7, 30, 31] {
            let taken = Mutex::new(Vec::new());
            pool.run_pieces(n_items, 1, |range, thread| {
                taken.lock().unwrap().push((thread, range.start));
                std::thread::yield_now();
            })
            .unwrap();
            let taken = taken.into_inner().unwrap();
            for thread in 0..n_threads {
                let share = thread * n_items / n_threads..(thread + 1) * n_items / n_threads;
                let starts: Vec<usize> = taken
                    .iter()
                    .filter_map(|&(by, start)| (by == thread).then_some(start))
                    .collect();
                let (own, others): (Vec<usize>, Vec<usize>) =
                    starts.iter().partition(|start| share.contains(start));
                assert!(own.is_sorted());
                assert_eq!([own, others].concat(), starts, "own pieces first");
            }
        }
    }

    #[test]
    fn a_clone_uses_the_same_threads_but_not_at_once() {
        let mut pool = ThreadPool::new(2).unwrap();
        let mut other = pool.clone();
        let n_done = AtomicUsize::new(0);
        let count = |_, _| {
            n_done.fetch_add(1, Ordering::Relaxed);
        };
        for _ in 0..3 {
            pool.run_pieces(10, 1, count).unwrap();
            other.run_pieces(10, 1, count).unwrap();
        }
        assert_eq!(n_done.load(Ordering::Relaxed), 60);
        let nested = Mutex::new(&mut other);
        let result = pool.run_pieces(2, 1, |_, _| {
            let mut other = nested.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = other.run_pieces(2, 1, count);
        });
        assert_eq!(result, Err(WorkerPanicked));
        drop(pool);
        assert_eq!(other.run_pieces(10, 1, count), Ok(()));
    }

    #[test]
    fn a_panicking_piece_is_an_error_and_the_pool_lives_on() {
        for n_threads in [1, 3] {
            let mut pool = ThreadPool::new(n_threads).unwrap();
            for bad_piece in 0..3 {
                let result = pool.run_pieces(3, 1, |range, _| {
                    assert_ne!(range.start, bad_piece, "on purpose");
                });
                assert_eq!(result, Err(WorkerPanicked));
            }
            assert_eq!(pool.run_pieces(3, 1, |_, _| ()), Ok(()));
        }
    }

    #[test]
    fn sleeping_workers_are_woken_and_take_part() {
        let mut pool = ThreadPool::new(2).unwrap();
        let by_thread = [AtomicUsize::new(0), AtomicUsize::new(0)];
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            pool.run_pieces(40, 1, |_, thread| {
                by_thread[thread].fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(1));
            })
            .unwrap();
        }
        assert_eq!(
            by_thread
                .iter()
                .map(|n| n.load(Ordering::Relaxed))
                .sum::<usize>(),
            120
        );
        assert!(by_thread[1].load(Ordering::Relaxed) > 0);
    }
}
