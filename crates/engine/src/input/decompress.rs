//! Decompresses files. The first bytes show the format, not the name.
//!
//! Every decoder reads a stream. Like the programs of the formats, it reads concatenated members.
//! If a file is truncated, it returns an error, not an end. The memory of a decoder is limited,
//! whatever the file claims.

use std::fmt;
use std::io::{self, BufRead, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The most memory that a decoder may use, in bytes: `xz -9` needs 65 MiB and `zstd --ultra -22`
/// needs 128 MiB.
#[cfg(feature = "xz")]
const DECODER_MEMORY: u64 = 160 << 20;

/// The largest window of zstd that is decoded, as a power of two. It is the limit of zstd's own
/// program.
#[cfg(feature = "zstd")]
const ZSTD_WINDOW_LOG: u32 = 27;

/// The length of the longest signature.
const SIGNATURE: usize = 6;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1952
    Gzip,
    /// RFC 8878
    Zstd,
    /// the LZ4 frame format
    Lz4,
    /// bzip2
    Bzip2,
    /// the .xz file format
    Xz,
}

impl Compression {
    /// The format's usual name.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
            Compression::Lz4 => "lz4",
            Compression::Bzip2 => "bzip2",
            Compression::Xz => "xz",
        }
    }

    /// Detects the format by the first bytes of a file; `None` for plain data.
    fn of(head: &[u8]) -> Option<Compression> {
        match head {
            [0x1f, 0x8b, 0x08, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstd),
            // A zstd file may begin with a skippable frame.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Compression::Zstd),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(Compression::Lz4),
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, ..] => Some(Compression::Bzip2),
            // An empty bzip2 file has no block, only the end of the stream.
            [b'B', b'Z', b'h', b'1'..=b'9', 0x17, 0x72, ..] => Some(Compression::Bzip2),
            [0xfd, b'7', b'z', b'X', b'Z', 0x00, ..] => Some(Compression::Xz),
            _ => None,
        }
    }
}

/// Counts the compressed bytes that a decoder has consumed. These are fewer than the bytes that
/// were read ahead.
struct Taken<R> {
    source: R,
    taken: Arc<AtomicU64>,
}

impl<R: BufRead> Read for Taken<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.source.read(out)?;
        self.taken.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

impl<R: BufRead> BufRead for Taken<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.source.fill_buf()
    }

    fn consume(&mut self, n: usize) {
        self.taken.fetch_add(n as u64, Ordering::Relaxed);
        self.source.consume(n);
    }
}

/// Returns the compression of `source`, if any, and its plain bytes. `taken` counts the compressed
/// bytes as they are decoded.
///
/// # Errors
///
/// Reading the first bytes failed, or this build does not support the format. Errors in the
/// compressed data come from the returned reader, and [`is_damage`] recognises them.
pub fn open<R: Read + Send + 'static>(
    mut source: R,
    taken: &Arc<AtomicU64>,
) -> io::Result<(Option<Compression>, Box<dyn Read + Send>)> {
    let mut head = Vec::with_capacity(SIGNATURE);
    source.by_ref().take(SIGNATURE as u64).read_to_end(&mut head)?;
    let compression = Compression::of(&head);
    let whole = io::Cursor::new(head).chain(source);
    let Some(compression) = compression else { return Ok((None, Box::new(whole))) };
    let buffered = io::BufReader::with_capacity(256 << 10, Patient(whole));
    let counted = Taken { source: buffered, taken: taken.clone() };
    Ok((Some(compression), decoder(compression, counted)?))
}

/// A source that repeats a read after a signal has interrupted it. A decoder that receives this
/// error loses its place, and its next read would be treated as the end. All other errors are marked
/// as those of the source.
struct Patient<R>(R);

impl<R: Read> Read for Patient<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(out) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome.map_err(of_source),
            }
        }
    }
}

/// An error of the source of compressed data.
#[derive(Debug)]
struct OfSource(io::Error);

impl fmt::Display for OfSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for OfSource {}

/// Marks an error of the source. Its kind is hidden, because a decoder may take
/// [`io::ErrorKind::UnexpectedEof`] for the end. Errors of the operating system have numbers, which
/// are kept.
fn of_source(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(_) => error,
        None => io::Error::other(OfSource(error)),
    }
}

/// Whether the error is that the data are damaged, and not that the operating system or the source
/// has failed.
pub fn is_damage(error: &io::Error) -> bool {
    let of_source = error.get_ref().is_some_and(|inner| inner.is::<OfSource>());
    error.raw_os_error().is_none() && !of_source
}

fn decoder<R: BufRead + Send + 'static>(
    compression: Compression,
    source: R,
) -> io::Result<Box<dyn Read + Send>> {
    match compression {
        #[cfg(feature = "gzip")]
        Compression::Gzip => Ok(Box::new(gzip_members(source))),
        #[cfg(feature = "bzip2")]
        Compression::Bzip2 => Ok(Box::new(bzip2::bufread::MultiBzDecoder::new(source))),
        #[cfg(feature = "zstd")]
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG)?;
            Ok(Box::new(decoder))
        }
        #[cfg(feature = "xz")]
        Compression::Xz => {
            let stream = liblzma::stream::Stream::new_stream_decoder(
                DECODER_MEMORY,
                liblzma::stream::CONCATENATED,
            )?;
            Ok(Box::new(liblzma::bufread::XzDecoder::new_stream(source, stream)))
        }
        #[cfg(feature = "lz4")]
        Compression::Lz4 => Ok(Box::new(lz4_frames(source))),
        #[allow(unreachable_patterns)]
        missing => {
            let name = missing.name();
            let message =
                format!("it is {name}, and this program was built without feature {name}");
            drop(source);
            Err(io::Error::new(io::ErrorKind::Unsupported, message))
        }
    }
}

/// Parts of compressed data one after another. Each part has its own decoder.
#[cfg(any(feature = "gzip", feature = "lz4"))]
struct Parts<R, D> {
    /// `None` between parts, while the source is examined
    part: Option<D>,
    source: Option<R>,
    /// creates the decoder of the next part, if there is one
    begin: fn(R) -> io::Result<Option<D>>,
    /// returns the source after the end of a part
    end: fn(D) -> io::Result<R>,
}

#[cfg(any(feature = "gzip", feature = "lz4"))]
impl<R, D: Read> Read for Parts<R, D> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some(mut part) = self.part.take() {
                let got = part.read(out)?;
                if got > 0 {
                    self.part = Some(part);
                    return Ok(got);
                }
                self.source = Some((self.end)(part)?);
            }
            let Some(source) = self.source.take() else { return Ok(0) };
            self.part = (self.begin)(source)?;
        }
    }
}

/// gzip members. Zeros after the last one are padding, as for gzip's own program: a tape or a block
/// device leaves them there. Any other byte must begin another member.
#[cfg(feature = "gzip")]
fn gzip_members<R: BufRead>(source: R) -> impl Read {
    Parts {
        part: None,
        source: Some(source),
        begin: |mut source: R| match source.fill_buf()?.first() {
            None => Ok(None),
            Some(0) => only_zeros(source).map(|()| None),
            Some(_) => Ok(Some(flate2::bufread::GzDecoder::new(source))),
        },
        end: |member| Ok(member.into_inner()),
    }
}

/// Reads `source` to its end.
///
/// # Errors
///
/// It has a byte other than zero, or cannot be read.
#[cfg(feature = "gzip")]
fn only_zeros(mut source: impl BufRead) -> io::Result<()> {
    loop {
        let bytes = source.fill_buf()?;
        if bytes.iter().any(|b| *b != 0) {
            let message = "there is data behind the zeros that follow the compressed data";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        match bytes.len() {
            0 => return Ok(()),
            seen => source.consume(seen),
        }
    }
}

/// Records whether its source has ended.
#[cfg(feature = "lz4")]
struct Noted<R> {
    source: R,
    ended: bool,
}

#[cfg(feature = "lz4")]
impl<R: Read> Read for Noted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let got = self.source.read(out)?;
        self.ended = got == 0 && !out.is_empty();
        Ok(got)
    }
}

/// LZ4 frames.
///
/// The library's decoder stops after one frame. It also treats a file that is truncated between two
/// blocks as complete. So a frame that ends because the source ends, and not by its end mark, is an
/// error here.
#[cfg(feature = "lz4")]
fn lz4_frames<R: BufRead>(source: R) -> impl Read {
    Parts {
        part: None,
        source: Some(source),
        begin: |mut source: R| {
            let over = source.fill_buf()?.is_empty();
            let noted = || Noted { source, ended: false };
            Ok((!over).then(|| lz4_flex::frame::FrameDecoder::new(noted())))
        },
        end: |frame| {
            let Noted { source, ended } = frame.into_inner();
            if ended {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(source)
        },
    }
}

#[cfg(all(test, not(feature = "xz")))]
mod without_xz {
    use super::*;

    #[test]
    fn the_feature_that_a_file_needs_is_named() {
        let file = io::Cursor::new(b"\xfd7zXZ\0 and so on".to_vec());
        let error = open(file, &Arc::default()).err().unwrap();
        let expected = "it is xz, and this program was built without feature xz";
        assert_eq!(error.to_string(), expected);
    }
}

#[cfg(all(
    test,
    feature = "gzip",
    feature = "zstd",
    feature = "lz4",
    feature = "bzip2",
    feature = "xz"
))]
mod tests {
    use super::*;
    use std::io::Write;

    const ALL: [Compression; 5] = [
        Compression::Gzip,
        Compression::Zstd,
        Compression::Lz4,
        Compression::Bzip2,
        Compression::Xz,
    ];

    fn compress(compression: Compression, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match compression {
            Compression::Gzip => {
                let mut w = flate2::write::GzEncoder::new(&mut out, Default::default());
                w.write_all(data).unwrap();
                w.finish().unwrap();
            }
            Compression::Zstd => out = zstd::encode_all(data, 3).unwrap(),
            Compression::Lz4 => {
                let mut w = lz4_flex::frame::FrameEncoder::new(&mut out);
                w.write_all(data).unwrap();
                w.finish().unwrap();
            }
            Compression::Bzip2 => {
                let mut w = bzip2::write::BzEncoder::new(&mut out, Default::default());
                w.write_all(data).unwrap();
                w.finish().unwrap();
            }
            Compression::Xz => out = liblzma::encode_all(data, 3).unwrap(),
        }
        out
    }

    fn read(bytes: Vec<u8>) -> io::Result<(Option<Compression>, Vec<u8>)> {
        let (compression, mut reader) = open(io::Cursor::new(bytes), &Arc::default())?;
        let mut out = Vec::new();
        reader.read_to_end(&mut out)?;
        Ok((compression, out))
    }

    fn sample() -> Vec<u8> {
        (0..8_000u32)
            .flat_map(|i| format!("{},{}\n", i, i.wrapping_mul(2_654_435_761)).into_bytes())
            .collect()
    }

    #[test]
    fn every_format_comes_back_whole_and_concatenated() {
        for compression in ALL {
            let data = sample();
            let packed = compress(compression, &data);
            assert_eq!(read(packed.clone()).unwrap(), (Some(compression), data.clone()));
            let twice = [packed.clone(), packed].concat();
            assert_eq!(read(twice).unwrap().1, [data.clone(), data].concat(), "{compression:?}");
        }
    }

    /// Returns the bytes one by one, with a signal before each.
    struct Interrupted(io::Cursor<Vec<u8>>, bool);

    impl Read for Interrupted {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let one = out.len().min(1);
            self.0.read(&mut out[..one])
        }
    }

    #[test]
    fn signals_lose_nothing() {
        for compression in ALL {
            let data = sample();
            let packed = compress(compression, &data);
            let source = io::Cursor::new([packed.clone(), packed].concat());
            let (_, mut reader) = open(Interrupted(source, false), &Arc::default()).unwrap();
            let mut out = Vec::new();
            reader.read_to_end(&mut out).unwrap();
            assert_eq!(out.len(), 2 * data.len(), "{compression:?}");
            assert!(out == [data.clone(), data].concat(), "{compression:?}");
        }
    }

    #[test]
    fn an_empty_file_in_every_format() {
        for compression in ALL {
            assert_eq!(read(compress(compression, b"")).unwrap(), (Some(compression), vec![]));
        }
    }

    #[test]
    fn a_file_that_breaks_off_is_an_error_wherever_it_does() {
        for compression in ALL {
            let packed = compress(compression, &sample());
            let step = (packed.len() / 31).max(1);
            let ends =
                (SIGNATURE..packed.len()).step_by(step).chain(packed.len() - 9..packed.len());
            for end in ends {
                let outcome = read(packed[..end].to_vec());
                assert!(outcome.is_err(), "{compression:?} cut at {end} of {}", packed.len());
            }
        }
    }

    /// Returns its bytes, then one error without a number of the operating system, then nothing.
    struct Failing(io::Cursor<Vec<u8>>, Option<io::Error>);

    impl Read for Failing {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            match self.0.read(out)? {
                0 if !out.is_empty() => self.1.take().map_or(Ok(0), Err),
                n => Ok(n),
            }
        }
    }

    /// If the source fails, its data are taken neither for damaged nor for complete.
    #[test]
    fn an_error_of_the_source_is_neither_damage_nor_the_end() {
        for compression in ALL {
            let packed = compress(compression, &sample());
            // The first block of lz4 begins after 7 bytes.
            for end in [SIGNATURE, 7, packed.len() / 2, packed.len() - 1] {
                for kind in [io::ErrorKind::TimedOut, io::ErrorKind::UnexpectedEof] {
                    let fault = io::Error::new(kind, "no answer");
                    let source = Failing(io::Cursor::new(packed[..end].to_vec()), Some(fault));
                    let (_, mut reader) = open(source, &Arc::default()).unwrap();
                    let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
                    assert!(!is_damage(&error), "{compression:?}, {end} bytes: {error:?}");
                    assert_eq!(error.to_string(), "no answer");
                }
            }
            let cut = read(packed[..packed.len() / 2].to_vec()).unwrap_err();
            assert!(is_damage(&cut), "{compression:?}: {cut:?}");
        }
    }

    #[test]
    fn zeros_behind_gzip_are_padding_and_other_bytes_are_not() {
        let data = sample();
        let packed = compress(Compression::Gzip, &data);
        for zeros in [1, 512, 600 << 10] {
            let padded = [&packed[..], &vec![0; zeros]].concat();
            assert_eq!(read(padded.clone()).unwrap().1, data, "{zeros} zeros");
            for behind in [&packed[..], b"x"] {
                let outcome = read([&padded[..], behind].concat());
                assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::InvalidData, "{zeros}");
            }
        }
    }

    #[test]
    fn plain_data_is_left_alone() {
        for data in [&b""[..], b"B", b"BZh9 is a user,1\n", b"a,b\n"] {
            assert_eq!(read(data.to_vec()).unwrap(), (None, data.to_vec()));
        }
    }
}
