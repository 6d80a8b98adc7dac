//! Ends a program that was compiled for another processor with a line that says so. By itself it would die of
//! an illegal instruction somewhere, without a word. Constructors of C++ run before `main`: those are not covered.
//!
//! The compiler may use any instruction it was allowed to, so what asks the processor is assembly, and the rest has
//! nothing but calls and comparisons of constants. (`is_x86_feature_detected!` does not help: for what the program
//! is compiled for, the compiler assumes that the answer is yes.) On other systems than Linux on x86-64 nothing is
//! checked.

/// Returns if the processor has all that the program was compiled for; else the process has ended, with exit
/// code 1 and one line on the standard error stream. To be called first in `main`, and what follows not to be inlined
/// there.
#[inline(never)]
pub fn require() {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    x86_64::require();
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod x86_64 {
    /// Registers that CPUID answers in.
    const EAX: u64 = 0;
    const EBX: u64 = 1;
    const ECX: u64 = 2;
    const EDX: u64 = 3;
    /// Parts of XCR0, what the operating system saves of the registers: those of SSE and AVX, and with them those of AVX-512.
    const YMM: u32 = 0x06;
    const ZMM: u32 = 0xe6;

    extern "C" {
        fn write(file: i32, bytes: *const u8, n: usize) -> isize;
        fn _exit(code: i32) -> !;
    }

    /// Returns true if the processor has a feature, and the system saves the parts of XCR0 that it needs.
    #[inline(never)]
    fn has(leaf: u32, subleaf: u32, register: u64, bit: u32, xcr0: u32) -> bool {
        let found: u32;
        // SAFETY: it asks the processor, and leaves the stack and the register it saves as they were.
        unsafe {
            std::arch::asm!(
                "push rbx",
                "mov eax, r8d; and eax, 0x80000000; xor ecx, ecx; cpuid", // The highest leaf of its range.
                "cmp eax, r8d; jb 3f",
                "mov eax, r8d; mov ecx, r9d; cpuid",
                "push rdx; push rcx; push rbx; push rax; mov eax, [rsp + 8 * r10]; add rsp, 32",
                "bt eax, r11d; jnc 3f",
                "test edi, edi; jz 2f",
                "mov eax, 1; xor ecx, ecx; cpuid; bt ecx, 27; jnc 3f", // OSXSAVE: XCR0 may be read.
                "xor ecx, ecx; xgetbv; and eax, edi; cmp eax, edi; jne 3f",
                "2: mov r8d, 1; jmp 4f",
                "3: xor r8d, r8d",
                "4: pop rbx",
                inout("r8") leaf => found, in("r9") subleaf, in("r10") register, in("r11") bit, in("rdi") xcr0,
                out("rax") _, out("rcx") _, out("rdx") _,
            );
        }
        found != 0
    }

    #[inline(never)]
    fn say(text: &str) {
        // SAFETY: the text's bytes are there for the call.
        unsafe { write(2, text.as_ptr(), text.len()) };
    }

    /// Returns true if ggml is compiled with a feature by default.
    const fn ggml_needs(name: &str) -> bool {
        cfg!(ggml_needs_avx2)
            && matches!(name.as_bytes(), b"sse4.2" | b"avx" | b"avx2" | b"bmi2" | b"fma" | b"f16c")
    }

    macro_rules! features {
        ($($leaf:literal $subleaf:literal $register:ident: $($name:tt $bit:literal $xcr0:tt),+;)*) => {
            pub(crate) fn require() {
                let mut lacks = false;
                $($({
                    const NEEDED: bool = cfg!(target_feature = $name) || ggml_needs($name);
                    if NEEDED && !has($leaf, $subleaf, $register, $bit, $xcr0) {
                        if !lacks {
                            say("error: this program was built for another processor, of whose features this lacks:");
                        }
                        say(concat!(" ", $name));
                        lacks = true;
                    }
                })+)*
                if lacks {
                    say("; build it for this one: RUSTFLAGS=\"-C target-cpu=native\" cargo build --release --bins\n");
                    // SAFETY: it ends the process, and runs nothing before.
                    unsafe { _exit(1) }
                }
            }

            /// Each feature with what is found here, what the standard library finds, and whether the program needs it.
            #[cfg(test)]
            fn all() -> Vec<(&'static str, bool, bool, bool)> {
                vec![$($((
                    $name,
                    has($leaf, $subleaf, $register, $bit, $xcr0),
                    is_x86_feature_detected!($name),
                    cfg!(target_feature = $name) || ggml_needs($name),
                )),+),*]
            }
        };
    }

    // Intel's manual, volume 2A, CPUID; AMD's, volume 3, appendix E: leaf, subleaf and register, then bits. Left out:
    // what only the kernel uses, and what nothing here does.
    features! {
        1 0 ECX: "sse3" 0 0, "pclmulqdq" 1 0, "ssse3" 9 0, "fma" 12 YMM, "cmpxchg16b" 13 0, "sse4.1" 19 0,
            "sse4.2" 20 0, "movbe" 22 0, "popcnt" 23 0, "aes" 25 0, "avx" 28 YMM, "f16c" 29 YMM;
        0x8000_0001 0 ECX: "lzcnt" 5 0, "sse4a" 6 0, "tbm" 21 0;
        7 0 EBX: "bmi1" 3 0, "avx2" 5 YMM, "bmi2" 8 0, "avx512f" 16 ZMM, "avx512dq" 17 ZMM, "avx512ifma" 21 ZMM,
            "avx512cd" 28 ZMM, "sha" 29 0, "avx512bw" 30 ZMM, "avx512vl" 31 ZMM;
        7 0 ECX: "avx512vbmi" 1 ZMM, "avx512vbmi2" 6 ZMM, "gfni" 8 0, "vaes" 9 YMM, "vpclmulqdq" 10 YMM,
            "avx512vnni" 11 ZMM, "avx512bitalg" 12 ZMM, "avx512vpopcntdq" 14 ZMM;
        7 0 EDX: "avx512vp2intersect" 8 ZMM, "avx512fp16" 23 ZMM;
        7 1 EAX: "avxvnni" 4 YMM, "avx512bf16" 5 ZMM, "avxifma" 23 YMM;
        7 1 EDX: "avxvnniint8" 4 YMM, "avxneconvert" 5 YMM, "avxvnniint16" 10 YMM;
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Gives a second opinion on features that the program is not compiled with; for the others, the test running
        /// at all proves them.
        #[test]
        fn says_what_the_standard_library_says() {
            for (name, found, by_std, _) in all() {
                assert_eq!(found, by_std, "{name}");
            }
            let needs_avx2 = all().iter().any(|&(name, .., needed)| name == "avx2" && needed);
            assert_eq!(needs_avx2, cfg!(any(target_feature = "avx2", ggml_needs_avx2)));
            require();
        }

        #[test]
        fn what_no_processor_has_is_lacking() {
            // A reserved bit, leaves past the last, and a part of XCR0 that does not exist.
            assert!(!has(1, 0, ECX, 16, 0));
            assert!(!has(0x0fff_ffff, 0, EAX, 0, 0));
            assert!(!has(0x8fff_ffff, 0, EAX, 0, 0));
            assert!(!has(1, 0, ECX, 0, 1 << 30));
            assert!(has(1, 0, EDX, 26, 0), "sse2");
        }
    }
}
