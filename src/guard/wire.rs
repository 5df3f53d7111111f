//! The messages between candidate, guard and backstop.
//!
//! The hazard: a message that is seen in part, or a peer that dies unnoticed. So messages have a fixed size and travel
//! over a sequenced-packet socketpair, which delivers each one whole. When it closes, the other side is gone.

use super::hooks::{Hook, Reason};
use super::policy::Order;
use crate::election::{CheckEnd, CommandEnd, HookEnd, StartError, Unhealthy};
use crate::lease::Deadline;
use crate::time::{BootInstant, nanos};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

const SIZE: usize = 32;
type Packet = [u8; SIZE];

/// From the guard or the backstop to the candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    Started {
        pid: i32,
    },
    NotStarted(StartError),
    Ended(CommandEnd),
    /// The terminal stopped COMMAND with this signal. The candidate has the terminal again.
    Paused {
        signal: i32,
    },
    DeadlineReached,
    /// The tree was killed. Each duration counts from the instant at which the kill was due.
    Killed {
        /// Until the guard was awake.
        woken: Duration,
        /// Until every visible process had been sent SIGKILL.
        signalled: Duration,
        /// Until no process was left.
        empty: Duration,
    },
    /// COMMAND will not start, because the pre-start hook ended this way.
    Unready(HookEnd),
    /// Another hook failed. That changes nothing.
    HookFailed(Hook, HookEnd),
    /// A health check failed. That changes nothing yet.
    CheckFailed(Unhealthy),
    /// The health check failed as many times in a row as it may. Sent once.
    Unhealthy(Unhealthy),
    /// From the backstop: it has forked the guard.
    Guarded {
        pid: i32,
    },
    /// From the backstop: the guard failed.
    GuardFailed,
    /// From the backstop: it has no descendant left.
    Dead,
}

/// One end of a connection between two of these processes.
#[derive(Debug)]
pub struct Line(OwnedFd);

/// What was read from a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard<T> {
    Message(T),
    /// No message now.
    Silence,
    /// The other side is gone.
    Closed,
}

impl Line {
    /// Both ends of a new line.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Self(one), Self(other)))
    }

    #[must_use]
    pub fn adopt(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Sends an order. It is lost if the buffer of a frozen listener is full; such a listener is left to the deadline.
    pub fn order(&self, order: Order) {
        self.send(&encode_order(order));
    }

    pub fn report(&self, report: &Report) {
        self.send(&encode_report(report));
    }

    #[must_use]
    pub fn hear_order(&self) -> Heard<Order> {
        self.hear(decode_order)
    }

    #[must_use]
    pub fn hear_report(&self) -> Heard<Report> {
        self.hear(decode_report)
    }

    fn send(&self, packet: &Packet) {
        let _ = send(self.0.as_raw_fd(), packet, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT);
    }

    fn hear<T>(&self, decode: impl Fn(&Packet) -> Option<T>) -> Heard<T> {
        loop {
            let mut packet = [0; SIZE];
            match recv(self.0.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Heard::Closed,
                // Both sides are the same executable, so this does not happen. Ignoring the message is safe: deadlines
                // need none.
                Ok(_) => {
                    if let Some(message) = decode(&packet) {
                        return Heard::Message(message);
                    }
                }
                Err(Errno::EAGAIN) => return Heard::Silence,
                Err(Errno::EINTR) => {}
                Err(_) => return Heard::Closed,
            }
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn packet(tag: u8, numbers: [u64; 3]) -> Packet {
    let mut packet = [0; SIZE];
    packet[0] = tag;
    for (slot, number) in packet[8..].chunks_exact_mut(8).zip(numbers) {
        slot.copy_from_slice(&number.to_le_bytes());
    }
    packet
}

fn unpack(packet: &Packet) -> (u8, [u64; 3]) {
    let mut numbers = [0; 3];
    for (number, slot) in numbers.iter_mut().zip(packet[8..].chunks_exact(8)) {
        *number = u64::from_le_bytes(slot.try_into().expect("eight bytes"));
    }
    (packet[0], numbers)
}

fn encode_order(order: Order) -> Packet {
    match order {
        Order::Extend(Deadline { term_at, kill_at, backstop_at }) => {
            packet(1, [term_at, kill_at, backstop_at].map(BootInstant::as_nanos))
        }
        Order::Stop { kill_after } => packet(2, [kill_after.map_or(u64::MAX, nanos), 0, 0]),
        Order::Lose => packet(3, [0; 3]),
        Order::Kill => packet(4, [0; 3]),
        Order::Signal(signal) => packet(5, [u64::from(signal.unsigned_abs()), 0, 0]),
        Order::Continue => packet(6, [0; 3]),
        Order::Because(reason) => {
            let number = Reason::ALL.iter().position(|&known| known == reason).expect("all of them are there");
            packet(7, [number as u64, 0, 0])
        }
    }
}

fn decode_order(packet: &Packet) -> Option<Order> {
    let (tag, numbers) = unpack(packet);
    Some(match tag {
        1 => {
            let [term_at, kill_at, backstop_at] = numbers.map(BootInstant::from_nanos);
            Order::Extend(Deadline { term_at, kill_at, backstop_at })
        }
        2 => Order::Stop { kill_after: (numbers[0] != u64::MAX).then(|| Duration::from_nanos(numbers[0])) },
        3 => Order::Lose,
        4 => Order::Kill,
        5 => Order::Signal(i32::try_from(numbers[0]).ok()?),
        6 => Order::Continue,
        7 => Order::Because(*Reason::ALL.get(usize::try_from(numbers[0]).ok()?)?),
        _ => return None,
    })
}

fn encode_report(report: &Report) -> Packet {
    let number = |number: i32| u64::from(number.unsigned_abs());
    match report {
        Report::Started { pid } => packet(1, [number(*pid), 0, 0]),
        Report::NotStarted(StartError(errno)) => packet(2, [number(*errno), 0, 0]),
        Report::Ended(CommandEnd::Exited(status)) => packet(3, [0, number(*status), 0]),
        Report::Ended(CommandEnd::Signalled(signal)) => packet(3, [1, number(*signal), 0]),
        Report::Paused { signal } => packet(4, [number(*signal), 0, 0]),
        Report::DeadlineReached => packet(5, [0; 3]),
        Report::Guarded { pid } => packet(13, [number(*pid), 0, 0]),
        Report::GuardFailed => packet(6, [0; 3]),
        Report::Dead => packet(7, [0; 3]),
        Report::Killed { woken, signalled, empty } => packet(10, [*woken, *signalled, *empty].map(nanos)),
        Report::CheckFailed(failed) => unhealthy(11, *failed),
        Report::Unhealthy(failed) => unhealthy(12, *failed),
        Report::Unready(end) => {
            let (kind, number) = encode_end(*end);
            packet(8, [kind, number, 0])
        }
        Report::HookFailed(hook, end) => {
            let (kind, number) = encode_end(*end);
            packet(9, [kind, number, *hook as u64])
        }
    }
}

fn unhealthy(tag: u8, Unhealthy { last, failures }: Unhealthy) -> Packet {
    let (kind, number) = encode_end(last.0);
    packet(tag, [kind, number, failures.into()])
}

fn encode_end(end: HookEnd) -> (u64, u64) {
    let (kind, number) = match end {
        HookEnd::Exited(status) => (0, status),
        HookEnd::Signalled(signal) => (1, signal),
        HookEnd::NotStarted(errno) => (2, errno),
        HookEnd::TimedOut => (3, 0),
        HookEnd::Cut => (4, 0),
    };
    (kind, u64::from(number.unsigned_abs()))
}

fn decode_end(kind: u64, number: i32) -> Option<HookEnd> {
    Some(match kind {
        0 => HookEnd::Exited(number),
        1 => HookEnd::Signalled(number),
        2 => HookEnd::NotStarted(number),
        3 => HookEnd::TimedOut,
        4 => HookEnd::Cut,
        _ => return None,
    })
}

fn decode_report(packet: &Packet) -> Option<Report> {
    let (tag, numbers) = unpack(packet);
    let number = |index: usize| i32::try_from(numbers[index]).ok();
    Some(match tag {
        1 => Report::Started { pid: number(0)? },
        2 => Report::NotStarted(StartError(number(0)?)),
        3 if numbers[0] == 0 => Report::Ended(CommandEnd::Exited(number(1)?)),
        3 => Report::Ended(CommandEnd::Signalled(number(1)?)),
        4 => Report::Paused { signal: number(0)? },
        5 => Report::DeadlineReached,
        13 => Report::Guarded { pid: number(0)? },
        6 => Report::GuardFailed,
        7 => Report::Dead,
        8 => Report::Unready(decode_end(numbers[0], number(1)?)?),
        9 => {
            let hook =
                [Hook::PreStart, Hook::PreStop, Hook::PostStop].into_iter().find(|hook| *hook as u64 == numbers[2])?;
            Report::HookFailed(hook, decode_end(numbers[0], number(1)?)?)
        }
        10 => {
            let [woken, signalled, empty] = numbers.map(Duration::from_nanos);
            Report::Killed { woken, signalled, empty }
        }
        11 | 12 => {
            let last = CheckEnd(decode_end(numbers[0], number(1)?)?);
            let failed = Unhealthy { last, failures: u32::try_from(numbers[2]).ok()? };
            if tag == 11 { Report::CheckFailed(failed) } else { Report::Unhealthy(failed) }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate, Source};

    /// The tag, and then each number up to the last that is not zero.
    fn hex(packet: &Packet) -> String {
        assert_eq!(packet[1..8], [0; 7]);
        let number = |bytes: &[u8]| format!(" {:016x}", u64::from_be_bytes(bytes.try_into().expect("eight bytes")));
        let numbers: Vec<String> = packet[8..].chunks_exact(8).map(number).collect();
        format!("{:02x}{}", packet[0], numbers.concat()).trim_end_matches(" 0000000000000000").to_owned()
    }

    #[test]
    fn every_order_has_the_bytes_that_it_has_always_had_and_arrives_as_it_was_sent() {
        let (here, there) = Line::pair().unwrap();
        let at = BootInstant::from_nanos;
        let deadline = Deadline {
            term_at: at(0x0102_0304_0506_0708),
            kill_at: at(0x1112_1314_1516_1718),
            backstop_at: at(0x2122_2324_2526_2728),
        };
        for (order, bytes) in [
            (Order::Extend(deadline), "01 0807060504030201 1817161514131211 2827262524232221"),
            (Order::Extend(Deadline::NONE), "01 ffffffffffffffff ffffffffffffffff ffffffffffffffff"),
            (Order::Stop { kill_after: None }, "02 ffffffffffffffff"),
            (Order::Stop { kill_after: Some(Duration::from_millis(1500)) }, "02 002f685900000000"),
            (Order::Lose, "03"),
            (Order::Kill, "04"),
            (Order::Signal(10), "05 0a00000000000000"),
            (Order::Continue, "06"),
            (Order::Because(Reason::Asked), "07"),
            (Order::Because(Reason::Paused), "07 0100000000000000"),
            (Order::Because(Reason::SteppedDown), "07 0200000000000000"),
            (Order::Because(Reason::Relinquished), "07 0300000000000000"),
            (Order::Because(Reason::Overran), "07 0400000000000000"),
            (Order::Because(Reason::Lost), "07 0500000000000000"),
            (Order::Because(Reason::Killed), "07 0600000000000000"),
            (Order::Because(Reason::Ended), "07 0700000000000000"),
            (Order::Because(Reason::NotStarted), "07 0800000000000000"),
            (Order::Because(Reason::Failed), "07 0900000000000000"),
            (Order::Because(Reason::Unhealthy), "07 0a00000000000000"),
        ] {
            assert_eq!(hex(&encode_order(order)), bytes, "{order:?}");
            here.order(order);
            assert_eq!(there.hear_order(), Heard::Message(order));
        }
        assert_eq!(there.hear_order(), Heard::Silence);
        drop(here);
        assert_eq!(there.hear_order(), Heard::Closed);
    }

    #[test]
    fn every_report_has_the_bytes_that_it_has_always_had_and_arrives_as_it_was_sent() {
        let (here, there) = Line::pair().unwrap();
        let micros = Duration::from_micros;
        for (report, bytes) in [
            (Report::Started { pid: 4_000_000 }, "01 00093d0000000000"),
            (Report::NotStarted(StartError(2)), "02 0200000000000000"),
            (Report::Ended(CommandEnd::Exited(255)), "03 0000000000000000 ff00000000000000"),
            (Report::Ended(CommandEnd::Signalled(9)), "03 0100000000000000 0900000000000000"),
            (Report::Paused { signal: 20 }, "04 1400000000000000"),
            (Report::DeadlineReached, "05"),
            (Report::GuardFailed, "06"),
            (Report::Guarded { pid: 258 }, "0d 0201000000000000"),
            (Report::Dead, "07"),
            (Report::Unready(HookEnd::Exited(3)), "08 0000000000000000 0300000000000000"),
            (Report::Unready(HookEnd::Signalled(9)), "08 0100000000000000 0900000000000000"),
            (Report::Unready(HookEnd::NotStarted(2)), "08 0200000000000000 0200000000000000"),
            (Report::Unready(HookEnd::TimedOut), "08 0300000000000000"),
            (Report::Unready(HookEnd::Cut), "08 0400000000000000"),
            (Report::HookFailed(Hook::PreStart, HookEnd::Exited(3)), "09 0000000000000000 0300000000000000"),
            (
                Report::HookFailed(Hook::PreStop, HookEnd::TimedOut),
                "09 0300000000000000 0000000000000000 0100000000000000",
            ),
            (
                Report::HookFailed(Hook::PostStop, HookEnd::Signalled(9)),
                "09 0100000000000000 0900000000000000 0200000000000000",
            ),
            (
                Report::Killed { woken: micros(3), signalled: micros(4_000), empty: micros(5_000_000) },
                "0a b80b000000000000 00093d0000000000 00f2052a01000000",
            ),
            (
                Report::CheckFailed(Unhealthy { last: CheckEnd(HookEnd::Exited(2)), failures: 1 }),
                "0b 0000000000000000 0200000000000000 0100000000000000",
            ),
            (
                Report::Unhealthy(Unhealthy { last: CheckEnd(HookEnd::TimedOut), failures: 3 }),
                "0c 0300000000000000 0000000000000000 0300000000000000",
            ),
        ] {
            assert_eq!(hex(&encode_report(&report)), bytes, "{report:?}");
            here.report(&report);
            assert_eq!(there.hear_report(), Heard::Message(report));
        }
    }

    /// A random packet. About half of them are valid.
    fn any_packet(source: &mut Source) -> Packet {
        let tag = u8::try_from(source.below(14)).expect("it is below fourteen");
        let mut any = packet(tag, [source.number(), source.number(), source.number()]);
        if source.one_in(8) {
            any[source.below(SIZE)] = u8::MAX;
        }
        any
    }

    #[test]
    fn a_million_packets_are_refused_or_are_orders_that_encode_as_they_came() {
        fuzz::run("order to the guard", |source, input| {
            let packet = any_packet(source);
            input.show(|| format!("{packet:?}"));
            let order = decode_order(&packet);
            assert_eq!(order.and_then(|order| decode_order(&encode_order(order))), order);
            (&order).into()
        });
    }

    #[test]
    fn a_million_packets_are_refused_or_are_reports_that_encode_as_they_came() {
        fuzz::run("report of the guard", |source, input| {
            let packet = any_packet(source);
            input.show(|| format!("{packet:?}"));
            let report = decode_report(&packet);
            assert_eq!(report.as_ref().and_then(|report| decode_report(&encode_report(report))), report);
            Fate::from(&report)
        });
    }
}
