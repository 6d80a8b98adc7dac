//! The features of x86-64 that compilers use by themselves or code asks for, and the check.

use std::arch::global_asm;

/// Registers that CPUID answers in.
const EAX: u32 = 0;
const EBX: u32 = 1;
const ECX: u32 = 2;
const EDX: u32 = 3;
/// Parts of XCR0, what the operating system saves of the registers: of SSE and AVX; of AVX-512, too.
const YMM: u32 = 0x06;
const ZMM: u32 = 0xe6;

/// One feature. The assembly below knows this layout.
#[repr(C)]
struct Feature {
    leaf: u32,
    subleaf: u32,
    register: u32,
    bit: u32,
    /// Bits of XCR0 that it needs.
    xcr0: u32,
    required: u32,
    len: u32,
    /// A space and the name: no pointer, which would have to be relocated.
    name: [u8; 36],
}

const SIZE: usize = size_of::<Feature>();

const fn feature(name: &str, at: (u32, u32, u32, u32), xcr0: u32, required: bool) -> Feature {
    let mut spaced = [b' '; 36];
    let mut i = 0;
    while i < name.len() {
        spaced[i + 1] = name.as_bytes()[i];
        i += 1;
    }
    let (leaf, subleaf, register, bit) = at;
    let len = name.len() as u32 + 1;
    Feature { leaf, subleaf, register, bit, xcr0, required: required as u32, len, name: spaced }
}

/// Returns true if ggml is compiled with a feature by default.
const fn ggml_needs(name: &str) -> bool {
    cfg!(ggml_needs_avx2)
        && matches!(name.as_bytes(), b"sse4.2" | b"avx" | b"avx2" | b"bmi2" | b"fma" | b"f16c")
}

macro_rules! features {
    ($($name:tt, $leaf:expr, $subleaf:expr, $register:expr, $bit:expr, $xcr0:expr;)*) => {
        static FEATURES: [Feature; [$($name),*].len()] = [$(feature(
            $name,
            ($leaf, $subleaf, $register, $bit),
            $xcr0,
            cfg!(target_feature = $name) || ggml_needs($name),
        )),*];

        /// Features that the standard library finds, but for those this was compiled with, which it takes for given.
        #[cfg(test)]
        fn found_by_std() -> Vec<bool> {
            vec![$(is_x86_feature_detected!($name)),*]
        }
    };
}

// Intel's manual, volume 2A, CPUID; AMD's, volume 3, appendix E. Left out: what only the kernel uses, and
// what nothing here does.
features! {
    "sse3", 1, 0, ECX, 0, 0;
    "pclmulqdq", 1, 0, ECX, 1, 0;
    "ssse3", 1, 0, ECX, 9, 0;
    "fma", 1, 0, ECX, 12, YMM;
    "cmpxchg16b", 1, 0, ECX, 13, 0;
    "sse4.1", 1, 0, ECX, 19, 0;
    "sse4.2", 1, 0, ECX, 20, 0;
    "movbe", 1, 0, ECX, 22, 0;
    "popcnt", 1, 0, ECX, 23, 0;
    "aes", 1, 0, ECX, 25, 0;
    "avx", 1, 0, ECX, 28, YMM;
    "f16c", 1, 0, ECX, 29, YMM;
    "lzcnt", 0x8000_0001, 0, ECX, 5, 0;
    "sse4a", 0x8000_0001, 0, ECX, 6, 0;
    "tbm", 0x8000_0001, 0, ECX, 21, 0;
    "bmi1", 7, 0, EBX, 3, 0;
    "avx2", 7, 0, EBX, 5, YMM;
    "bmi2", 7, 0, EBX, 8, 0;
    "avx512f", 7, 0, EBX, 16, ZMM;
    "avx512dq", 7, 0, EBX, 17, ZMM;
    "avx512ifma", 7, 0, EBX, 21, ZMM;
    "avx512cd", 7, 0, EBX, 28, ZMM;
    "sha", 7, 0, EBX, 29, 0;
    "avx512bw", 7, 0, EBX, 30, ZMM;
    "avx512vl", 7, 0, EBX, 31, ZMM;
    "avx512vbmi", 7, 0, ECX, 1, ZMM;
    "avx512vbmi2", 7, 0, ECX, 6, ZMM;
    "gfni", 7, 0, ECX, 8, 0;
    "vaes", 7, 0, ECX, 9, YMM;
    "vpclmulqdq", 7, 0, ECX, 10, YMM;
    "avx512vnni", 7, 0, ECX, 11, ZMM;
    "avx512bitalg", 7, 0, ECX, 12, ZMM;
    "avx512vpopcntdq", 7, 0, ECX, 14, ZMM;
    "avx512vp2intersect", 7, 0, EDX, 8, ZMM;
    "avx512fp16", 7, 0, EDX, 23, ZMM;
    "avxvnni", 7, 1, EAX, 4, YMM;
    "avx512bf16", 7, 1, EAX, 5, ZMM;
    "avxifma", 7, 1, EAX, 23, YMM;
    "avxvnniint8", 7, 1, EDX, 4, YMM;
    "avxneconvert", 7, 1, EDX, 5, YMM;
    "avxvnniint16", 7, 1, EDX, 10, YMM;
}

static BEFORE: [u8; 82] =
    *b"error: this program was built for another processor, of whose features this lacks:";
static AFTER: [u8; 117] = *b"; build it here, or for most processors since 2013: \
    RUSTFLAGS=\"-C target-cpu=x86-64-v3\" cargo build --release --bins\n";

global_asm!(
    // rdi: a Feature. eax: 1 if the processor or the system lacks it, else 0.
    ".pushsection .text.ropewalk_processor, \"ax\", @progbits",
    "ropewalk_processor_lacks:",
    "push rbx",
    "mov r8, rdi",
    "mov eax, [r8]", // The highest leaf of its range.
    "and eax, 0x80000000",
    "xor ecx, ecx",
    "cpuid",
    "cmp eax, [r8]",
    "jb 3f",
    "mov eax, [r8]",
    "mov ecx, [r8 + 4]",
    "cpuid",
    "sub rsp, 16",
    "mov [rsp], eax",
    "mov [rsp + 4], ebx",
    "mov [rsp + 8], ecx",
    "mov [rsp + 12], edx",
    "mov ecx, [r8 + 8]",
    "mov eax, [rsp + 4 * rcx]",
    "add rsp, 16",
    "mov ecx, [r8 + 12]",
    "bt eax, ecx",
    "jnc 3f",
    "cmp dword ptr [r8 + 16], 0",
    "je 2f",
    "mov eax, 1", // OSXSAVE: XCR0 may be read.
    "xor ecx, ecx",
    "cpuid",
    "bt ecx, 27",
    "jnc 3f",
    "xor ecx, ecx",
    "xgetbv",
    "and eax, [r8 + 16]",
    "cmp eax, [r8 + 16]",
    "jne 3f",
    "2: xor eax, eax",
    "pop rbx",
    "ret",
    "3: mov eax, 1",
    "pop rbx",
    "ret",
    // Looks at every feature; names what is lacking and ends the process, or returns.
    "ropewalk_processor_require:",
    "push rbx",
    "push r12",
    "push r13",
    "lea rbx, [rip + {features}]",
    "lea r12, [rbx + {end}]",
    "xor r13d, r13d",
    "2: cmp rbx, r12",
    "jae 5f",
    "cmp dword ptr [rbx + 20], 0",
    "je 4f",
    "mov rdi, rbx",
    "call ropewalk_processor_lacks",
    "test eax, eax",
    "jz 4f",
    "test r13d, r13d",
    "jnz 3f",
    "mov r13d, 1",
    "lea rsi, [rip + {before}]",
    "mov edx, {before_len}",
    "call 7f",
    "3: lea rsi, [rbx + 28]",
    "mov edx, [rbx + 24]",
    "call 7f",
    "4: add rbx, {size}",
    "jmp 2b",
    "5: test r13d, r13d",
    "jz 6f",
    "lea rsi, [rip + {after}]",
    "mov edx, {after_len}",
    "call 7f",
    "mov edi, 1",
    "mov eax, 231", // exit_group
    "syscall",
    "6: pop r13",
    "pop r12",
    "pop rbx",
    "ret",
    "7: mov edi, 2", // The standard error stream.
    "mov eax, 1", // write
    "syscall",
    "ret",
    ".popsection",
    features = sym FEATURES,
    end = const SIZE * FEATURES.len(),
    size = const SIZE,
    before = sym BEFORE,
    before_len = const BEFORE.len(),
    after = sym AFTER,
    after_len = const AFTER.len(),
);

extern "C" {
    fn ropewalk_processor_require();
    #[cfg(test)]
    fn ropewalk_processor_lacks(feature: *const Feature) -> u32;
}

/// Called by the loader before the constructors of shared libraries, where the C library does that (glibc).
#[used]
#[link_section = ".preinit_array"]
static FIRST: unsafe extern "C" fn() = ropewalk_processor_require;
/// Called before the program's own constructors.
#[used]
#[link_section = ".init_array.00001"]
static BEFORE_CONSTRUCTORS: unsafe extern "C" fn() = ropewalk_processor_require;

pub(crate) fn require() {
    // SAFETY: it reads static tables, asks the processor, and may write and end the process.
    unsafe { ropewalk_processor_require() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacks(feature: &Feature) -> bool {
        // SAFETY: it reads the feature and asks the processor.
        unsafe { ropewalk_processor_lacks(feature) == 1 }
    }

    fn name(f: &Feature) -> &str {
        std::str::from_utf8(&f.name[..f.len as usize]).unwrap().trim()
    }

    /// Gives a second opinion on features that the program is not compiled with; for the others, the test running at
    /// all proves them.
    #[test]
    fn says_what_the_standard_library_says() {
        for (feature, found) in FEATURES.iter().zip(found_by_std()) {
            assert_eq!(lacks(feature), !found, "{}", name(feature));
        }
        let required: Vec<&str> = FEATURES.iter().filter(|f| f.required != 0).map(name).collect();
        assert_eq!(required.contains(&"avx2"), cfg!(any(target_feature = "avx2", ggml_needs_avx2)));
        require();
    }

    #[test]
    fn what_no_processor_has_is_lacking() {
        // A reserved bit, a leaf past the last, and a part of XCR0 that there is not.
        assert!(lacks(&feature("a", (1, 0, ECX, 16), 0, true)));
        assert!(lacks(&feature("b", (0x0fff_ffff, 0, EAX, 0), 0, true)));
        assert!(lacks(&feature("c", (0x8fff_ffff, 0, EAX, 0), 0, true)));
        assert!(lacks(&feature("d", (1, 0, ECX, 0), 1 << 30, true)));
        assert!(!lacks(&feature("sse2", (1, 0, EDX, 26), 0, true)));
    }
}
