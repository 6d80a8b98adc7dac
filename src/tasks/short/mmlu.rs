//! The files of MMLU: development and test questions of 57 subjects.

use super::PACKAGE;
use crate::DataFile;

/// A subject of MMLU.
pub(super) struct Subject {
    /// Name of its folder.
    pub(super) name: &'static str,
    /// Five questions for examples.
    pub(super) dev: DataFile,
    /// The questions that are asked.
    pub(super) test: DataFile,
}

macro_rules! subjects {
    ($($name:literal $dev:literal $test:literal)*) => {
        /// All subjects.
        pub(super) static SUBJECTS: [Subject; 57] = [$(Subject {
            name: $name,
            dev: file(concat!("short/mmlu/", $name, "/dev.arrow"), $dev),
            test: file(concat!("short/mmlu/", $name, "/test.arrow"), $test),
        }),*];
    };
}

const fn file(name: &'static str, sha256: &'static str) -> DataFile {
    DataFile { name, sha256: Some(sha256), from: PACKAGE }
}

/// All files.
pub(super) static FILES: [&DataFile; 114] = {
    let mut files = [&SUBJECTS[0].dev; 114];
    let mut i = 0;
    while i < SUBJECTS.len() {
        files[2 * i] = &SUBJECTS[i].dev;
        files[2 * i + 1] = &SUBJECTS[i].test;
        i += 1;
    }
    files
};

subjects! {
    "abstract_algebra"
    "1851d67caf6b64111602342d9d5884d9f75d32e93efd52e96586c404dc2207f8"
    "188d54be8bce5b30231f8e559ed5b9d0f6031db5d059c87438da3e1f3c135c41"
    "anatomy"
    "6e261f5198f3360ac85c30df4b28e8a80fc1e200fa95ea301b4cf1c8f20b6e21"
    "5ba354eb72ab348c1af18a5f32efc85add7113c5a3b24eeef36b7acaf302b416"
    "astronomy"
    "8ae8aebba3ef2714b4f0bee66b41d5cf6bf0d5c2cb184ac9d5d6e21056ddbfca"
    "5379082de3c8ad953109b8fe340086cb6fb728ddfb5ed7f3dbd20ad3b7d72008"
    "business_ethics"
    "1042d32ce31689c83cc86aee2139ceb2019dd2db508c99af3fc8ca8c8c6ae191"
    "dcdb7280579a8a21691c011ec0662b0fb85005c24f919c31af9b9775fd1e98a0"
    "clinical_knowledge"
    "b6dc90c03760b5543c464d33393ec60dac28d31e7e0c853ae996c2b702c5b4ed"
    "bec076c966813d42055d25ea1697219e91e29de307dcbd01ec6b5681980690d3"
    "college_biology"
    "cba0cf88235efca15fe6c07dfc837c8b5bde1940f9efbdd0af6eaa3aae2da365"
    "91fb560edd0962c2e09a0d442c6ae89ac57a6ad2bfbab0a71713f727267b29b9"
    "college_chemistry"
    "5cc844c464da2730ab8fbc0430b0b743a67e48fffaec676084a1a415a3f6c573"
    "e9ebf7576f172ab03282492b4074ccedb1b57149ea628afb1895bcfd5ccbd2d1"
    "college_computer_science"
    "3cf5f0fc60d3d906d92be099d2f5a62fc1d80daaf82be114fbd1ab9035a78354"
    "36603a81ce0e7dbc16ce6103beb95447b327329291ed09333078d8607ae71829"
    "college_mathematics"
    "02744bcdcb808cda3df4750fb8805ba6f2dcfec3422f8b974eddacd16a80c32b"
    "60fea375c64d0b713b0a2e286533bf403ce882f4c5bb18be172683c1d8137403"
    "college_medicine"
    "80e2ad8ce1b242b05111f98c73cca7e5c38f09a73430a5da7ad5822b140f41fa"
    "804b81ab384fd85a7ab070cbefed91788445f7fb387fcaeb19de592a822bdc68"
    "college_physics"
    "b62c82b1de928cb75e513eb628c221ed49ade11cb03d56e0a1ece83175aa98d4"
    "c68e3545cadebfe90d1e3eb9e132ae92c0278be5c4aeb0e4da77217d3513135b"
    "computer_security"
    "aa18ef1df52511dd112734d8d91dcbba9d7e95e1aeeca08eae6114a0460d2302"
    "dd1d35b98eda222a90d27876c7f4a7fc8c4144a18f0f77e16218a86ef7694641"
    "conceptual_physics"
    "0886af5e1ab7199f2b1bb062901cc93f594f42fd8cc95511d1117237c0bdf902"
    "45f1aadccfc7f2dc949182d8e77fc92930477cb62f8301e754e5ff635b5f6c70"
    "econometrics"
    "6c81c7c2a3fe20adc6e54bd27fc0315965449d12867f2cf18f8af588b1a0b631"
    "5d1e2f135d36546dc229a6c4232e94c1fdabd6c4da1c96a6fd1fb3bfe5e72487"
    "electrical_engineering"
    "dfd9531617c7206c5f8aea65492440a1325d470619711dda6497c174f284c453"
    "db239207a9796fc7b98656e34164c77f93713ba4bfa9be1b24f20e1408e45e46"
    "elementary_mathematics"
    "dd452bbaf157a7b04eabfc365c84c32c82b7048d883a41420282f154fbacd62f"
    "e0f949a57d1a5a87ceb0905ea812f71ae150d0e01447230e522524940e7608c3"
    "formal_logic"
    "2d90b5c01d29912b4478a1970bbf4b74ab244e0134f3a4f0c0e808662ee7fdb9"
    "2e606e23f700c015d26f59faf0f24b2f9399953cb3d38d732d6a9e3b2fecb779"
    "global_facts"
    "edcf889ab6732fc711c45d929e2ded79864fa64ba407d4f096ba85ee53d37193"
    "8e3340b8e898ddeef4abac1cd42e91d64138103a691476e14d90bc7956371a36"
    "high_school_biology"
    "fb95c87818c9a15238687f9b691706617addd6725b0e5ff1ae8ccbd939ec7cf0"
    "11969b704fa77f7496325ee9b82b461b07141184adf5fcf43ed1573d0285283c"
    "high_school_chemistry"
    "6cfc4cb31c249c635fff117d9d9da10d5b04dceb52a308752e0f6003fe036f9f"
    "7f5ad6df3a55ec94c7fb8dbefdd94a4ef001c5ba170547cdcc05ff017338a114"
    "high_school_computer_science"
    "eec8f9cc1429f29f05b0160fb3ebef385da4fc38caef649cd10744f1ccb766d5"
    "e92bbe342263ee54729893c91c49a30faac715958084885c9c155346266cea2d"
    "high_school_european_history"
    "04ed2855102938b059f02a6d4f5b3d05af44b1f1c74c747fdcb938336f8c0c3d"
    "23143ad42cbddc89b09513dbb881e23b8d3974f716fc4e6b9224369e26393758"
    "high_school_geography"
    "2729303f21009588ab2f74f830fb05aa8a18ec3353f624aa948c9a99f5d13cf4"
    "0e5a014b8d39c53315132071f63a2e55392c8bdc46975deed095052725b61b64"
    "high_school_government_and_politics"
    "0a61f2e7df264b59936dcd982ebdc67b0ea9233b18ae9fa7fa29f3fbcd994912"
    "e6e01b4eb82f9eaa0d7c0f75018b52d182e4009d6542d6c08468228d6b72b001"
    "high_school_macroeconomics"
    "88b043fbed28c6533b53bd8a4f0f626b8b873fc29a41f6c8f753dda27ef809d0"
    "16831e2e02135a86b6eb0303a580af8ed17844db9a4f0158e6d9a1e6ff49aef7"
    "high_school_mathematics"
    "17a233e9a4de6bbfec870c01f7bdab698fc3288db291940e5a775edfea0aa9a1"
    "1cce0b01516c327d7c42e232ba534493b4b5730e496912b0f9ebd54171353dee"
    "high_school_microeconomics"
    "1d671635c42574fed7b7216f62f59be3483f4cd09f106458b68b98927555d9ce"
    "ab89f40862f238d06c929f04490d9b761cee036fb0d51ea7715a347666710e90"
    "high_school_physics"
    "71950d9f4889bc125a7d50d2e4dda03fd455c720dd69c61fdb13431f329782b6"
    "ad09816a6875375c9060aa77be5968253c42a46894ae23fe42a9801f9d43b529"
    "high_school_psychology"
    "1a4bafe2abd928b3a5a9e3e37bc92b599d66f55b736b1203336a20ad67c973cc"
    "bc050808945bfc1c7005eeeafd1bafce2f048dc6776488077cef7081347c231a"
    "high_school_statistics"
    "396b54267938d708e1f81c5a2ae070e32859e8505eea9d5fa39b79e34db726a4"
    "3a88d6b208c83ca337b273b43cd10f03d06a34d8eaf706180bd4f67d362ec22e"
    "high_school_us_history"
    "067c57bf0e735766ec58e89bb228198951c3a5b73e1b0dc684de4c769d787801"
    "eb462cf93ef233a7e465c537bd1f99a0405ad943f0851461409fcbbe745fcaf2"
    "high_school_world_history"
    "6f2194ab00a15a4e7d5b956277521d70084b96ac20a5720166865f4ea9a3a429"
    "de138132e34edc831559d9278bd93a99c22ece353f87f63038949c327c6415a9"
    "human_aging"
    "1743f6cab8ad1ab075dd5b27e482446b3830102b504208dda328eb982619fe42"
    "88164702ff62a6026b8cf1e286007e947e10d2865181830a2db644ff5b17382b"
    "human_sexuality"
    "0a21b0b6a0596d25be9d2a1cac1a219262d3150bf6bc76e924f0f20afed05eee"
    "52773cbcf357984ab748a938edc09ada109934e39647b3c6c2158ec93a2c3bab"
    "international_law"
    "ece429cfccf4769cf5c3ec1624c17601d00865153f3fe08f98398a69f5ae73c6"
    "11416d5e61bce26294231c6a940bc24bac3f2a8a585e139f2771df816c94c36e"
    "jurisprudence"
    "9794f9412d4975d0a69f95409a04023e045a29eaf84807c68b56e9cc1d061505"
    "6f17b1f24ed8180eaa4994eca0d9dd49d4fb9ad511c991f7cd98d7e613bc2b57"
    "logical_fallacies"
    "491a78982d42a49171d0f9ba8f56b3bd9f964de7290381a46f5532ed503f7b67"
    "11b6158246e7864d87233258fe719cb6eb4eed677cfc54ec1f1080cff7c2f32c"
    "machine_learning"
    "e227e0eabf6d5514e84bc8c8618634ccff36c6d677ca4e40039305e21129da31"
    "f0bfa95005ba4456ce44037767e854f94245d74db58bbea6102f4a5d6e4c6406"
    "management"
    "58f749c592ff1a595d6fdc36ad92a6bc0fb9a9e66413c17a342405ec3c7ec7bb"
    "ff60f7fdb0a70e1229bf73df879d76331632e3cc61e3b8b3a9938859deb2d238"
    "marketing"
    "c68640f65fc5271bc7155e8d6d1ecf9709da969f0f812dba368cb386037f937d"
    "8244bcc4e8c32edcbc94439195fce6f3a51448b1571c41fd8c3a4fa2fbd0daac"
    "medical_genetics"
    "c2626612813220666a73d4a7dfd9a017e432847b5bbea69cfa662f0bb1b5869b"
    "11d8c17f804f36bc5d5b833e4d1a0b06e75f15265191528a404185ec9eb83884"
    "miscellaneous"
    "11941188c21a35e8b2139a8ba73f197c74b9c77bbba24f58c0d10d91f7395f4f"
    "12e91cd7b0056231c35fae179b1e9c8271c49a89a480dc488d1b4d73978f7b07"
    "moral_disputes"
    "7c8357b75f594d1c3667790da5d9602af2ed08d4db52554cd46bcb4632fc93a0"
    "7ae7372f691eead15d68b4bcc42c065e9cf04d6e41cebf1118e95b2014c76d99"
    "moral_scenarios"
    "d995a66607cabbe1b2996f4854d387a1d0afd3cfe54bd4636fc33cbd242f1850"
    "43c33aea8bb6c0a60327754e18337da4dd912a24738fa16cc600655ccfc08de4"
    "nutrition"
    "1286afae24a7e88d32311b77839cee08c4f9a84e3831a655edd0c42699384e5a"
    "b9c9299e0e87478e9f5562fd4f58d4ec1b9326771c6f4a557d58db157e960ca0"
    "philosophy"
    "b7250006639f5b0b43ca32238ea1c23e0a365f6efe73d9525457275559d973a7"
    "26c049e57987e217bde7f320d617775e1f7b8861ea74839c52a757234ac5d202"
    "prehistory"
    "27e621e8b4ea105b213f41303995647c3f494c84409e4457dbaf3f45f5490ff5"
    "cc4521e84efec4ffb5a349b954809d5330019dba608c4e549216096af8bb2860"
    "professional_accounting"
    "35a578d38f816ccd6d159d13e4225f0387bc201c6757515a0b148c6fc5216f45"
    "077c211dc778701263132a21a85ee8b83dc176f2374c979180de244e12200209"
    "professional_law"
    "1fa4d5bdea97c374b4237fb7e7f1781288bf7be82d6947fae590e8ac464c3113"
    "c8d4677197907020af46daad1a46d1856d7ebd9518afa915ad154e7bdc353b83"
    "professional_medicine"
    "09328fd0e420a9ac214634b95d3326dee6731fab79fd884bea33726a3f3d039b"
    "af514ec00872a94f205de87b9985fd8a4c540f31a1548b39f4d1906df6f98f63"
    "professional_psychology"
    "aa97b789827b023b238c35f813e3a45d3b5486ab95d6c79402d96dc2d1c6cf9c"
    "1fc7ab524977913db1f4813e86db5b67cd064ac191668d763feb9100cd70b50a"
    "public_relations"
    "13ea1d72bba3215ac01c5e304ba9b379ad40ecd39463c139ae0d8bb6eb4aef69"
    "5bf9af64e6f9aa0d905a8f73b861627825d22aa211818296a5a4fb073e3fa143"
    "security_studies"
    "b5a3bb4768b0f97d4df09d7b5ef8809650e923482b1184fb3cdd7530d536abc5"
    "de2b82cc16a38b15ed4cc51707b3613e66e5ad923425504d57e1c54ea2f149d0"
    "sociology"
    "5f48f0273993dc8aa779b4c579bdb5704d643dd1707c634128cfcf0d47bc1ffd"
    "d43498940bfbaa95dbd5b5225aaeafb8ff8d03dd53c99f05f469974a9c21bfd0"
    "us_foreign_policy"
    "7f30e647c424f583a2fa1ecda83007bd22b89711956b3a6c82069b6647a4e05b"
    "0151d76d64d4fced3be92e0c908814df3ab9e1d549326455600eb2e6fa8a7eee"
    "virology"
    "b676c1ba1e1d5e0a4838f874d8ac896ae8280f7a4b29f1c44e09c3b96740e0b4"
    "d65e85b0ee006d4714104f0290efcfe08079767b5ed4126067be3c1d4118ea25"
    "world_religions"
    "81c9a3cb08327ce3992f25ae0e195eec631c15d40dbede800c975c800e0df3a0"
    "ce005c046644b978e0b514e6620d3de7cbe4265c29a3e68b5cb2e0ef7e285423"
}
