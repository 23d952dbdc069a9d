//! Instruction sets the kernels are written for, and which of them this machine has.
//!
//! Detection happens once at load time; the wheel itself is built for the baseline processor.

use std::fmt;

/// A set of instructions for which there is a table of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Portable Rust; the oracle for the others.
    Scalar,
    /// AVX2, FMA, F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL, VBMI and VNNI (Ice Lake, Zen 4 and later).
    Avx512,
    /// AVX-512 and AMX-BF16 tiles (Sapphire Rapids and later), where the system permits their use.
    Amx,
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Avx2, Self::Avx512, Self::Amx];

    /// Name as users type it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        }
    }

    /// The set a user means by `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// The processor features the kernels of this set need.
    pub fn required_features(self) -> &'static [&'static str] {
        match self {
            Self::Scalar => &[],
            Self::Avx2 => &["avx2", "fma", "f16c"],
            Self::Avx512 => &[
                "avx2",
                "fma",
                "f16c",
                "avx512f",
                "avx512bw",
                "avx512dq",
                "avx512vl",
                "avx512vbmi",
                "avx512vnni",
            ],
            Self::Amx => &[
                "avx2",
                "fma",
                "f16c",
                "avx512f",
                "avx512bw",
                "avx512dq",
                "avx512vl",
                "avx512vbmi",
                "avx512vnni",
                "avx512bf16",
                "amx-bf16",
                "amx-permitted",
            ],
        }
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        let features = cpu_features();
        self.required_features()
            .iter()
            .all(|name| features.iter().any(|(n, on)| n == name && *on))
    }

    /// All that this machine can run, slowest first.
    pub fn available() -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|isa| isa.is_available())
            .collect()
    }

    /// The fastest that this machine can run.
    pub fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self::Scalar)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Features of this processor that kernels ask for or may ask for, and whether it has them.
#[cfg(target_arch = "x86_64")]
pub fn cpu_features() -> Vec<(&'static str, bool)> {
    // The macro wants literals, hence the list in this form.
    vec![
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("fma", std::arch::is_x86_feature_detected!("fma")),
        ("f16c", std::arch::is_x86_feature_detected!("f16c")),
        ("avxvnni", std::arch::is_x86_feature_detected!("avxvnni")),
        ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
        ("avx512bw", std::arch::is_x86_feature_detected!("avx512bw")),
        ("avx512dq", std::arch::is_x86_feature_detected!("avx512dq")),
        ("avx512vl", std::arch::is_x86_feature_detected!("avx512vl")),
        (
            "avx512vbmi",
            std::arch::is_x86_feature_detected!("avx512vbmi"),
        ),
        (
            "avx512vnni",
            std::arch::is_x86_feature_detected!("avx512vnni"),
        ),
        (
            "avx512bf16",
            std::arch::is_x86_feature_detected!("avx512bf16"),
        ),
        (
            "avx512fp16",
            std::arch::is_x86_feature_detected!("avx512fp16"),
        ),
        ("amx-bf16", amx::has_bf16()),
        ("amx-permitted", amx::is_permitted()),
    ]
}

/// Features of this processor; empty where no kernel asks for any.
#[cfg(not(target_arch = "x86_64"))]
pub fn cpu_features() -> Vec<(&'static str, bool)> {
    Vec::new()
}

/// Whether tiles can be used. Stable Rust has no name for these features, so the processor and the system are asked here.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "two instructions without a safe form")]
mod amx {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::sync::OnceLock;

    /// Tiles and their bf16 product, by CPUID leaf 7, and the system saves both parts of their state, by XCR0.
    pub(super) fn has_bf16() -> bool {
        const BF16: u32 = 1 << 22;
        const TILE: u32 = 1 << 24;
        const OSXSAVE: u32 = 1 << 27;
        const TILE_STATE: u32 = 0b11 << 17;
        #[allow(
            unused_unsafe,
            reason = "later versions of Rust than the oldest supported one declare CPUID safe"
        )]
        // SAFETY: every processor of this architecture that Rust supports has CPUID.
        let (features, system) = unsafe {
            if __cpuid(0).eax < 7 {
                return false;
            }
            (__cpuid_count(7, 0).edx, __cpuid(1).ecx)
        };
        if features & (BF16 | TILE) != BF16 | TILE || system & OSXSAVE == 0 {
            return false;
        }
        let state: u32;
        // SAFETY: OSXSAVE says that XGETBV may be used.
        unsafe {
            asm!("xgetbv", in("ecx") 0, out("eax") state, out("edx") _, options(nostack, nomem));
        }
        state & TILE_STATE == TILE_STATE
    }

    /// The system's permission for the process to use tile data. Asked for once; it is refused while a thread has an alternate
    /// signal stack too small for the tiles.
    pub(super) fn is_permitted() -> bool {
        static PERMITTED: OnceLock<bool> = OnceLock::new();
        *PERMITTED.get_or_init(|| has_bf16() && request())
    }

    #[cfg(target_os = "linux")]
    fn request() -> bool {
        const ARCH_PRCTL: isize = 158;
        const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
        const XFEATURE_XTILEDATA: usize = 18;
        let result: isize;
        // SAFETY: a system call that reads no memory; the instruction clobbers rcx and r11.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => result,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") XFEATURE_XTILEDATA,
                out("rcx") _,
                out("r11") _,
                options(nostack),
            );
        }
        result == 0
    }

    #[cfg(not(target_os = "linux"))]
    fn request() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_is_always_available_and_detection_picks_the_last() {
        let available = Isa::available();
        assert_eq!(available[0], Isa::Scalar);
        assert_eq!(Isa::detect(), *available.last().unwrap());
    }

    #[test]
    fn names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::from_name("sse9"), None);
    }
}
