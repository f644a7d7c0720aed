//! Figures of OpenURMA that the studies are compared with: those of its paper, and those of the result files that are committed
//! in its repository (github.com/bojieli/OpenURMA, e6a2eb54). Numbers only.
//!
//! Columns of four are those of [`crate::interface::StudyStack::ALL`]. The repository's two-node simulator charges RoCE
//! 50 ns more for each operation than the paper's text does.

/// A row of the four columns by a parameter.
type Row = (u64, [u64; 4]);

/// READ, WRITE, SEND of 64 bytes; FAA, CAS of 8 bytes, in nanoseconds.
pub const OPERATIONS: [[u64; 4]; 5] = [
    [500, 757, 1_736, 2_236],
    [750, 750, 1_227, 1_727],
    [804, 804, 1_281, 1_781],
    [750, 750, 1_477, 1_977],
    [750, 750, 1_477, 1_977],
];
/// The same in the paper's text.
pub const OPERATIONS_PAPER: [[u64; 4]; 5] = [
    [500, 757, 1_686, 2_186],
    [750, 750, 1_177, 1_677],
    [804, 804, 1_231, 1_731],
    [750, 750, 1_427, 1_927],
    [750, 750, 1_427, 1_927],
];
/// READ of 64 bytes by the link's delay.
pub const LINK_READ: [Row; 4] = [
    (50, [400, 657, 1_636, 2_136]),
    (100, [500, 757, 1_736, 2_236]),
    (200, [700, 957, 1_936, 2_436]),
    (500, [1_300, 1_557, 2_536, 3_036]),
];
/// FAA and CAS by the link's delay.
pub const LINK_ATOMIC: [Row; 4] = [
    (50, [650, 650, 1_377, 1_877]),
    (100, [750, 750, 1_477, 1_977]),
    (200, [950, 950, 1_677, 2_177]),
    (500, [1_550, 1_550, 2_277, 2_777]),
];
/// RoCE DMA WRITE of 8, 64 and 256 bytes by the link's delay.
pub const WRITE_DMA: [(u64, [u64; 3]); 3] =
    [(50, [1_618, 1_627, 1_667]), (100, [1_718, 1_727, 1_767]), (200, [1_918, 1_927, 1_967])];
/// READ by bytes. The artefact's load of 8 bytes is not one access ([`SCAN_8`]).
pub const READS: &[Row] = &[
    (64, [500, 757, 1_736, 2_236]),
    (256, [542, 799, 2_276, 2_276]),
    (1_024, [707, 962, 2_441, 2_441]),
    (4_096, [1_364, 1_621, 3_098, 3_098]),
    (16_384, [3_996, 4_251, 5_730, 5_730]),
    (65_536, [14_519, 14_776, 16_253, 16_253]),
];
/// Mean of loads of 8 bytes one behind the other.
pub const SCAN_8: f64 = 62.5;
/// WRITE by bytes.
pub const WRITES: &[Row] = &[
    (8, [743, 743, 1_218, 1_718]),
    (64, [750, 750, 1_227, 1_727]),
    (256, [792, 792, 1_767, 1_767]),
    (1_024, [955, 955, 1_932, 1_932]),
    (4_096, [1_614, 1_614, 2_589, 2_589]),
    (16_384, [4_244, 4_244, 5_221, 5_221]),
    (65_536, [14_769, 14_769, 15_744, 15_744]),
];
/// SEND by bytes.
pub const SENDS: &[Row] = &[
    (8, [797, 797, 1_272, 1_772]),
    (64, [804, 804, 1_281, 1_781]),
    (256, [846, 846, 1_821, 1_821]),
    (1_024, [1_009, 1_009, 1_986, 1_986]),
    (4_096, [1_668, 1_668, 2_643, 2_643]),
    (16_384, [4_298, 4_298, 5_275, 5_275]),
    (65_536, [14_823, 14_823, 15_798, 15_798]),
];
/// Millions of READs a second by concurrency.
pub const CONCURRENCY: [(u64, [f64; 4]); 4] = [
    (1, [1.996, 1.319, 0.575_7, 0.447]),
    (4, [2.0, 1.321, 0.576, 0.447_2]),
    (16, [2.0, 1.321, 0.576, 0.447_2]),
    (64, [2.0, 1.321, 0.576, 0.447_2]),
];
/// READ by connections in use.
pub const SPILL: [Row; 9] = [
    (1, [500, 757, 1_736, 2_236]),
    (8, [500, 757, 1_736, 2_236]),
    (16, [500, 757, 1_736, 2_236]),
    (22, [500, 757, 1_736, 2_236]),
    (23, [500, 757, 2_736, 3_236]),
    (64, [500, 757, 2_736, 3_236]),
    (512, [500, 757, 2_736, 3_236]),
    (1_024, [700, 957, 2_736, 3_236]),
    (4_096, [700, 957, 2_736, 3_236]),
];
/// READ by Jetties on one channel: load, URMA, RoCE DMA.
pub const SHARING: [(u64, [u64; 3]); 7] = [
    (1, [500, 757, 2_236]),
    (2, [505, 762, 2_236]),
    (4, [515, 772, 2_236]),
    (16, [575, 832, 2_236]),
    (64, [815, 1_072, 2_236]),
    (256, [1_775, 2_032, 2_236]),
    (1_024, [5_615, 5_872, 2_236]),
];
/// SEND of 64 bytes by receivers: URMA, RoCE DMA.
pub const FAN_OUT: [(u64, [u64; 2]); 6] = [
    (1, [804, 1_781]),
    (2, [804, 1_981]),
    (4, [804, 1_981]),
    (16, [804, 1_981]),
    (512, [804, 1_981]),
    (1_024, [804, 2_981]),
];
/// CAS by contenders.
pub const CONTENTION: [Row; 4] = [
    (1, [750, 750, 1_477, 1_977]),
    (16, [750, 750, 1_477, 1_977]),
    (32, [750, 750, 2_477, 2_977]),
    (256, [750, 750, 2_477, 2_977]),
];
/// READ with strong order.
pub const ALL_STRONG: [u64; 4] = [520, 777, 1_736, 2_236];
/// Means by percent of READs with strong order.
pub const MIXED_ORDER: [Row; 5] = [
    (0, [500, 757, 1_736, 2_236]),
    (25, [505, 762, 1_736, 2_236]),
    (50, [510, 767, 1_736, 2_236]),
    (75, [515, 772, 1_736, 2_236]),
    (100, [520, 777, 1_736, 2_236]),
];
/// READ with UNO and ROL by bytes, URMA.
pub const ROL_URMA: [(u64, [u64; 2]); 5] =
    [(8, [750, 750]), (64, [757, 753]), (256, [799, 795]), (1_024, [962, 958]), (4_096, [1_621, 1_618])];
/// Means by share of READs lost, with the number of those that were lost of the 5000 that the artefact ran. The number follows
/// from the means: they differ from that without loss by it times [`ONE_LOSS`]'s difference.
pub const LOSS: [(f64, f64, [f64; 4]); 7] = [
    (0.0, 0.0, [500.0, 757.0, 1_736.0, 2_236.0]),
    (1e-4, 0.0, [500.0, 757.0, 1_736.0, 2_236.0]),
    (1e-3, 1.0, [500.1, 757.1, 1_738.0, 2_238.0]),
    (5e-3, 16.0, [501.0, 758.6, 1_768.0, 2_268.1]),
    (1e-2, 41.0, [502.5, 761.2, 1_818.1, 2_318.1]),
    (5e-2, 234.0, [514.1, 781.0, 2_204.8, 2_704.8]),
    (1e-1, 489.0, [529.4, 807.1, 2_715.6, 3_215.6]),
];
/// The longest READ with loss.
pub const ONE_LOSS: [f64; 4] = [801.0, 1_269.0, 11_752.0, 12_252.0];
/// Median and 99.9th percentile with jitter 0.2.
pub const JITTER: [[u64; 2]; 4] = [[540, 695], [797, 952], [1_954, 2_628], [2_550, 3_355]];
/// The same in the paper's text; none for BlueFlame.
pub const JITTER_PAPER: [Option<[u64; 2]>; 4] = [Some([540, 695]), Some([797, 952]), None, Some([2_500, 3_221])];
/// YCSB-A with 1 and 256 operations at a time, millions a second.
pub const YCSB: [(u64, [f64; 4]); 2] = [(1, [4.968, 1.325, 0.672_9, 0.503_5]), (256, [4.993, 1.327, 0.673_3, 0.503_7])];
/// All to all by nodes.
pub const MANY_NODES: [(u64, [f64; 4]); 8] = [
    (2, [446.9, 773.2, 2_199.4, 2_199.4]),
    (4, [496.9, 823.2, 2_249.4, 2_249.4]),
    (8, [597.0, 923.2, 2_349.4, 2_349.4]),
    (16, [797.0, 1_123.2, 2_549.4, 2_549.4]),
    (23, [972.0, 1_298.2, 3_724.4, 3_724.4]),
    (32, [1_197.0, 1_523.2, 3_949.4, 3_949.4]),
    (48, [1_597.0, 1_923.2, 4_349.4, 4_349.4]),
    (64, [1_997.0, 2_323.2, 4_749.4, 4_749.4]),
];
/// Open loop at 0.5 and 1.0 million operations a second: p50, p99 of load, URMA; BlueFlame and DMA saturate before.
pub const OPEN_LOOP: [(f64, [[u64; 2]; 2]); 2] =
    [(0.5, [[500, 1_300], [757, 2_406]]), (1.0, [[526, 1_942], [1_531, 6_799]])];
/// Loads by percent of locality, write-back and write-through.
pub const LOCALITY: [(u64, f64); 4] = [(0, 500.0), (25, 457.6), (50, 335.3), (80, 185.6)];
/// Programs, hosts; bytes on the bus with Jetties of 20 and of 48 bytes; bytes of RoCE.
pub const STATE: [(u64, u64, u64, u64, u64); 6] = [
    (1, 1, 108, 136, 544),
    (8, 8, 864, 1_088, 33_024),
    (64, 64, 6_912, 8_704, 2_099_200),
    (256, 256, 27_648, 34_816, 33_562_624),
    (1_024, 64, 56_832, 85_504, 33_587_200),
    (1_024, 1_024, 110_592, 139_264, 536_903_680),
];
/// Seconds of setup one after the other: RoCE, bus.
pub const SETUP_SERIAL: [(u64, [f64; 2]); 5] = [
    (1, [0.000_52, 0.000_51]),
    (16, [0.133_1, 0.008_16]),
    (64, [2.13, 0.032_64]),
    (256, [34.08, 0.130_6]),
    (1_024, [545.3, 0.522_2]),
];
/// Seconds of setup with 32 workers: RoCE, bus.
pub const SETUP_PARALLEL: [(u64, [f64; 2]); 5] = [
    (1, [0.000_520_1, 0.000_505_1]),
    (16, [0.004_16, 0.000_505_1]),
    (64, [0.066_56, 0.001_02]),
    (256, [1.065, 0.004_08]),
    (1_024, [17.04, 0.016_32]),
];
