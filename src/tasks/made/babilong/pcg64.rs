//! `numpy.random.default_rng`: PCG64 (O'Neill 2014, XSL-RR on 128 bits) seeded through `SeedSequence`.

/// NumPy's generator, as far as BABILong draws from it.
pub struct DefaultRng {
    state: u128,
    increment: u128,
    /// The upper half of a word whose lower half was drawn.
    half: Option<u32>,
}

const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

impl DefaultRng {
    /// `np.random.default_rng(seed)`.
    pub fn new(seed: u64) -> DefaultRng {
        let words = seed_words(seed);
        let wide = |at: usize| u128::from(words[at]) << 64 | u128::from(words[at + 1]);
        let mut rng = DefaultRng { state: 0, increment: wide(2) << 1 | 1, half: None };
        rng.step();
        rng.state = rng.state.wrapping_add(wide(0));
        rng.step();
        rng
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    fn next_u32(&mut self) -> u32 {
        if let Some(half) = self.half.take() {
            return half;
        }
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        let word = folded.rotate_right((self.state >> 122) as u32);
        self.half = Some((word >> 32) as u32);
        word as u32
    }

    /// `choice(n)`: below `n`, which is at least 1 (Lemire's method, as `integers(0, n)` uses it).
    pub fn choice(&mut self, n: u32) -> u32 {
        debug_assert!(n > 0, "a choice of none");
        if n <= 1 {
            return 0;
        }
        let mut product = u64::from(self.next_u32()) * u64::from(n);
        if (product as u32) < n {
            let threshold = (u32::MAX - (n - 1)) % n;
            while (product as u32) < threshold {
                product = u64::from(self.next_u32()) * u64::from(n);
            }
        }
        (product >> 32) as u32
    }
}

/// `SeedSequence(seed).generate_state(4, np.uint64)` (numpy/random/bit_generator.pyx).
fn seed_words(seed: u64) -> [u64; 4] {
    let entropy = [seed as u32, (seed >> 32) as u32, 0, 0];
    let mut constant = 0x43b0_d7e5_u32;
    let mut hash = |value: u32| {
        let value = value ^ constant;
        constant = constant.wrapping_mul(0x931e_8875);
        let value = value.wrapping_mul(constant);
        value ^ value >> 16
    };
    let mut pool = entropy.map(&mut hash);
    for from in 0..4 {
        for to in 0..4 {
            if from != to {
                let mixed = pool[to]
                    .wrapping_mul(0xca01_f9dd)
                    .wrapping_sub(hash(pool[from]).wrapping_mul(0x4973_f715));
                pool[to] = mixed ^ mixed >> 16;
            }
        }
    }
    let mut constant = 0x8b51_f9dd_u32;
    let mut word = |at: usize| {
        let value = pool[at % 4] ^ constant;
        constant = constant.wrapping_mul(0x58f3_8ded);
        let value = value.wrapping_mul(constant);
        u64::from(value ^ value >> 16)
    };
    [0, 2, 4, 6].map(|at| word(at) | word(at + 1) << 32)
}
