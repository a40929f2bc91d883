//! Decoding on another thread, a bounded number of blocks ahead of the consumer.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::stream::AudioStream;
use crate::{Damage, Error, Result};

/// Blocks of sound, in the form of [`AudioStream`].
pub trait Blocks: Iterator<Item = Result<Vec<f32>>> + Send {
    /// Damage of the file so far. It is complete when the iterator has ended.
    fn damage(&self) -> Option<Damage>;
}

impl Blocks for AudioStream {
    fn damage(&self) -> Option<Damage> {
        AudioStream::damage(self)
    }
}

/// Maximum number of seconds of sound that are decoded ahead of the consumer.
const AHEAD: usize = 60;

/// The blocks of [`AudioStream::ahead`]. Dropping it ends the thread after the current block.
pub struct Ahead {
    blocks: Receiver<Result<Vec<f32>>>,
    damage: Arc<Mutex<Option<Damage>>>,
    name: String,
    /// Number of blocks returned, of one second each.
    seconds: f64,
    most: Duration,
    has_ended: bool,
}

impl AudioStream {
    /// Decodes on another thread. A block that does not arrive within `most` is an error, so that a
    /// slow file blocks nobody. `name` appears in messages.
    ///
    /// # Errors
    /// [`Error::Read`] if the system has no thread.
    pub fn ahead(mut self, name: impl Into<String>, most: Duration) -> Result<Ahead> {
        let name = name.into();
        let (send, blocks) = sync_channel(AHEAD);
        let damage = Arc::<Mutex<Option<Damage>>>::default();
        let of_thread = Arc::clone(&damage);
        let decode = move || {
            while let Some(block) = self.next() {
                *of_thread.lock().unwrap_or_else(PoisonError::into_inner) = self.damage();
                if send.send(block).is_err() {
                    // The consumer is gone.
                    return;
                }
            }
            *of_thread.lock().unwrap_or_else(PoisonError::into_inner) = self.damage();
        };
        match thread::Builder::new().name("audio".into()).spawn(decode) {
            Ok(_) => Ok(Ahead { blocks, damage, name, seconds: 0.0, most, has_ended: false }),
            Err(source) => Err(Error::Read { name, seconds: 0.0, source }),
        }
    }
}

impl Iterator for Ahead {
    type Item = Result<Vec<f32>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        match self.blocks.recv_timeout(self.most) {
            Ok(block) => {
                self.seconds += 1.0;
                self.has_ended = block.is_err();
                Some(block)
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.has_ended = true;
                None
            }
            Err(RecvTimeoutError::Timeout) => {
                self.has_ended = true;
                Some(Err(Error::Slow {
                    name: self.name.clone(),
                    seconds: self.seconds,
                    most: self.most.as_secs(),
                }))
            }
        }
    }
}

impl Blocks for Ahead {
    fn damage(&self) -> Option<Damage> {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// A WAV file (mono, 16 kHz, 16 bits) of `seconds`, whose header promises `promised` bytes.
    fn wav(seconds: u32, promised: u32) -> Vec<u8> {
        let mut bytes = b"RIFF".to_vec();
        bytes.extend((36 + 32_000 * promised).to_le_bytes());
        bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data");
        bytes.extend((32_000 * promised).to_le_bytes());
        bytes.extend((0..16_000 * seconds).flat_map(|n| ((n % 1000) as i16).to_le_bytes()));
        bytes
    }

    #[test]
    fn what_is_decoded_ahead_is_what_is_decoded() {
        for promised in [100, 200] {
            let stream = || AudioStream::from_bytes(wav(100, promised), "a").unwrap();
            let mut ahead = stream().ahead("a", Duration::from_secs(60)).unwrap();
            let found: Vec<f32> = ahead.by_ref().flat_map(Result::unwrap).collect();
            let expected = stream().read_all().unwrap();
            assert_eq!(found, expected.samples);
            assert_eq!(ahead.damage().map(|d| d.to_string()), expected.damage.map(|d| d.to_string()));
            assert!(ahead.next().is_none());
        }
    }

    #[test]
    fn a_file_that_takes_too_long_is_given_up() {
        /// A reader that blocks after the header and some sound.
        struct Stuck(Vec<u8>, usize);
        impl Read for Stuck {
            fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
                let n = buf.len().min(self.0.len() - self.1);
                if n == 0 {
                    thread::sleep(Duration::from_secs(600));
                }
                buf[..n].copy_from_slice(&self.0[self.1..self.1 + n]);
                self.1 += n;
                Ok(n)
            }
        }
        let stream = AudioStream::from_reader(Stuck(wav(3, 100), 0), "a").unwrap();
        let found: Vec<_> = stream.ahead("a", Duration::from_millis(300)).unwrap().collect();
        assert!(matches!(found.last(), Some(Err(Error::Slow { .. }))), "{found:?}");
        assert!(found[..found.len() - 1].iter().all(Result::is_ok));
    }
}
