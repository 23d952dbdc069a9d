//! Watching a socket without the interpreter: a process whose other end is gone ends itself, whatever its Python threads do.
#![cfg_attr(
    unix,
    expect(
        unsafe_code,
        reason = "poll and _exit are C; the standard library has no safe way to either"
    )
)]

use pyo3::prelude::*;

/// Ends the process with `status` once the other side of the socket `fd` has closed it, `grace_ms` later at the latest: the
/// process has that long to end by itself. The watching thread needs no GIL. False where there is no way to watch.
#[pyfunction]
#[pyo3(signature = (fd, *, status = 0, grace_ms = 500))]
pub(crate) fn exit_when_closed(fd: i32, status: i32, grace_ms: u64) -> bool {
    watch(fd, status, grace_ms)
}

#[cfg(unix)]
fn watch(fd: i32, status: i32, grace_ms: u64) -> bool {
    use std::time::Duration;

    let body = move || {
        wait_until_closed(fd);
        std::thread::sleep(Duration::from_millis(grace_ms));
        // SAFETY: ends the process at once, without handlers that might wait for other threads.
        unsafe { libc::_exit(status) }
    };
    let started = std::thread::Builder::new()
        .name("rsllm-watch".to_owned())
        .spawn(body);
    started.is_ok()
}

#[cfg(not(unix))]
fn watch(_fd: i32, _status: i32, _grace_ms: u64) -> bool {
    false
}

/// Returns when the peer has closed its end or its sending side, or when `fd` is no open file any more.
#[cfg(unix)]
fn wait_until_closed(fd: i32) {
    #[cfg(target_os = "linux")]
    const CLOSED: i16 = libc::POLLRDHUP;
    #[cfg(not(target_os = "linux"))]
    const CLOSED: i16 = 0;
    let gone = CLOSED | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
    loop {
        let mut polled = libc::pollfd {
            fd,
            events: CLOSED,
            revents: 0,
        };
        // SAFETY: one entry, which lives until the call returns.
        let n_ready = unsafe { libc::poll(&raw mut polled, 1, -1) };
        // Less than nothing means interrupted.
        if n_ready > 0 && polled.revents & gone != 0 {
            return;
        }
    }
}
