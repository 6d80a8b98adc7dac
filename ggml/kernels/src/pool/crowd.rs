//! The number of threads that share ops while other programs use the cores: fewer if this thread has to share its core
//! or waits long for others, and more again later.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A wait for other threads is a stall if it is longer than this and than the work done meanwhile. Threads of one op
/// end within microseconds of each other; a scheduler gives a core to another program for milliseconds.
const STALL: Duration = Duration::from_micros(300);
/// This thread shares its core with somebody if it has less than this share of the time of a window.
const OWN: f64 = 0.8;
const WINDOW: Duration = Duration::from_millis(2);
/// Time lost in stalls, and to others on this core, of which a part is forgiven as time goes by: a machine that is never quite
/// idle costs a little now and then, and a thread less would cost more.
const FORGIVEN: f64 = 0.2;
const TOO_MUCH: Duration = Duration::from_millis(4);
/// How long fewer threads share ops at first, and at most.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(8), Duration::from_millis(512)];

/// Gives the processor time of the thread that calls it, where the system says.
pub type Clock = fn() -> Option<Duration>;

/// How many threads share an op while other programs use the cores.
#[derive(Debug)]
pub(super) struct Crowd {
    most: usize,
    threads: Cell<usize>,
    /// Time lost and not forgiven, and when that was counted.
    lost: Cell<(Duration, Instant)>,
    back_off: Cell<Duration>,
    /// When threads were last taken away.
    crowded: Cell<Instant>,
    /// When one thread more is tried.
    more_at: Cell<Instant>,
    clock: Clock,
    /// When the clock was last read, and what it said.
    read: Cell<(Instant, Option<Duration>)>,
    /// The time of this window in which this thread wanted to run, and that in which it did.
    wanted: Cell<Duration>,
    ran: Cell<Duration>,
}

impl Crowd {
    pub(super) fn new(most: usize, clock: Clock) -> Crowd {
        let now = Instant::now();
        Crowd {
            most,
            threads: Cell::new(most),
            lost: Cell::new((Duration::ZERO, now)),
            back_off: Cell::new(BACK_OFF[0]),
            crowded: Cell::new(now),
            more_at: Cell::new(now),
            clock,
            read: Cell::new((now, None)),
            wanted: Cell::default(),
            ran: Cell::default(),
        }
    }

    /// Time counts from now on.
    pub(super) fn begin(&self, now: Instant) {
        self.read.set((now, (self.clock)()));
    }

    /// Time counts up to now.
    pub(super) fn tick(&self, now: Instant) {
        let (then, before) = self.read.replace((now, (self.clock)()));
        let time = self.read.get().1;
        if let (Some(before), Some(time)) = (before, time) {
            self.wanted.set(self.wanted.get() + now.saturating_duration_since(then));
            self.ran.set(self.ran.get() + time.saturating_sub(before));
        }
    }

    /// Returns true if this thread had to share its core in the window that ends here.
    fn shared_core(&self) -> bool {
        let (wanted, ran) = (self.wanted.take(), self.ran.take());
        ran.as_secs_f64() < OWN * wanted.as_secs_f64()
    }

    /// How many an op gets.
    pub(super) fn threads(&self) -> usize {
        let threads = self.threads.get();
        if threads < self.most {
            let now = Instant::now();
            if now >= self.more_at.get() {
                self.tick(now);
                if self.shared_core() {
                    self.back_off.set((2 * self.back_off.get()).min(BACK_OFF[1]));
                } else {
                    self.threads.set(self.most.min(threads + step(threads)));
                }
                self.more_at.set(now + self.back_off.get());
            }
        }
        self.threads.get()
    }

    /// Looks at a window that is over.
    pub(super) fn check(&self, now: Instant) {
        if now.saturating_duration_since(self.read.get().0) >= WINDOW {
            self.tick(now);
            let lost = self.wanted.take().saturating_sub(self.ran.take());
            self.lose(lost, now);
        }
    }

    /// A part of an op took this thread so long, then it waited for others, asleep for some of the time.
    pub(super) fn waited(&self, worked: Duration, waited: Duration, slept: Duration) {
        // What it slept it did not want to run.
        let (then, time) = self.read.get();
        self.read.set((then + slept, time));
        if waited > worked.max(STALL) {
            self.lose(waited, Instant::now());
        }
    }

    fn lose(&self, time: Duration, now: Instant) {
        let (before, then) = self.lost.get();
        let forgiven = now.saturating_duration_since(then).mul_f64(FORGIVEN);
        let lost = before.saturating_sub(forgiven) + time;
        self.lost.set((lost, now));
        if lost > TOO_MUCH {
            self.lost.set((Duration::ZERO, now));
            self.fewer(now);
        }
    }

    fn fewer(&self, now: Instant) {
        let again = now.saturating_duration_since(self.crowded.get()) < 4 * self.back_off.get();
        let back_off = if again { (2 * self.back_off.get()).min(BACK_OFF[1]) } else { BACK_OFF[0] };
        let threads = self.threads.get();
        self.threads.set(threads.saturating_sub(step(threads)).max(1));
        self.back_off.set(back_off);
        self.crowded.set(now);
        self.more_at.set(now + back_off);
        self.wanted.set(Duration::ZERO);
        self.ran.set(Duration::ZERO);
    }
}

/// Threads taken away or added at once.
fn step(threads: usize) -> usize {
    (threads / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_take_threads_away_and_time_gives_them_back() {
        let ms = Duration::from_millis;
        let crowd = Crowd::new(16, || None);
        let wait = |waited| crowd.waited(ms(1), waited, Duration::ZERO);
        (0..9).for_each(|_| wait(ms(1)));
        assert_eq!(crowd.threads.get(), 16, "an op whose threads end apart is no stall");
        wait(ms(3));
        assert_eq!(crowd.threads.get(), 16, "one stall is forgiven");
        // From here on at one moment, however long the test itself is kept from running.
        let (now, mut seen) = (Instant::now(), vec![]);
        while crowd.threads.get() > 1 {
            crowd.lose(ms(5), now);
            seen.push(crowd.threads.get());
        }
        assert_eq!(seen, [12, 9, 7, 6, 5, 4, 3, 2, 1]);
        (0..8).for_each(|_| crowd.lose(ms(5), now));
        assert_eq!(
            (crowd.threads.get(), crowd.back_off.get()),
            (1, BACK_OFF[1]),
            "the more often, the longer"
        );
        let mut back = vec![];
        while crowd.threads.get() < 16 {
            crowd.more_at.set(crowd.crowded.get());
            back.push(crowd.threads());
        }
        assert_eq!(back, [2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16]);
        crowd.fewer(crowd.crowded.get() + ms(10_000));
        assert_eq!(
            (crowd.threads.get(), crowd.back_off.get()),
            (12, BACK_OFF[0]),
            "a first stall after long"
        );
    }

    thread_local! {
        static TIME: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    #[test]
    fn who_shares_a_core_takes_fewer_threads_until_it_is_alone() {
        let ms = Duration::from_millis;
        let crowd = Crowd::new(2, || Some(TIME.get()));
        let now = Cell::new(Instant::now());
        // Ops of a millisecond each, of which this thread gets so much; then it sleeps.
        let op = |ran: u64, slept: Duration| {
            crowd.check(now.get());
            now.set(now.get() + ms(1) + slept);
            TIME.set(TIME.get() + Duration::from_micros(ran));
            crowd.waited(ms(1), ms(1), slept);
        };
        crowd.begin(now.get());
        (0..10).for_each(|_| op(950, Duration::ZERO));
        (0..10).for_each(|_| op(950, ms(1)));
        assert_eq!(crowd.threads.get(), 2, "alone, and what it sleeps nobody takes");
        (0..4).for_each(|_| op(600, Duration::ZERO));
        assert_eq!(crowd.threads.get(), 2, "so little is forgiven");
        (0..40).for_each(|_| op(600, Duration::ZERO));
        assert_eq!(crowd.threads.get(), 1);
        // Time that others still take, then time that they do not.
        let look = |ran| {
            // So much that what the test itself is kept from running does not count.
            crowd.wanted.set(ms(1_000_000));
            crowd.ran.set(ran);
            crowd.more_at.set(Instant::now());
            crowd.begin(Instant::now());
            crowd.threads()
        };
        let back_off = crowd.back_off.get();
        assert_eq!((look(ms(600_000)), crowd.back_off.get()), (1, 2 * back_off));
        assert_eq!(look(ms(1_000_000)), 2);
    }
}
