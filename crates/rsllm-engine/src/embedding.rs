//! From the rows of a text to its embedding.

/// Which rows of a text make its embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// All rows, one a token.
    None,
    /// The mean of all.
    Mean,
    /// The first.
    Cls,
    /// The last.
    Last,
    /// The score that the classification head of a reranker gives the last: one value a text.
    Rank,
}

impl Pooling {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::None, Self::Mean, Self::Cls, Self::Last, Self::Rank];

    /// The name that callers use.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
            Self::Rank => "rank",
        }
    }

    /// The kind of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pooling| pooling.name() == name)
    }
}

/// Gathers the rows of one text as they come, `embed_dim` values each.
pub(crate) struct Pool {
    pooling: Pooling,
    embed_dim: usize,
    n_rows: usize,
    /// Sums in double precision for a mean, else what is handed out.
    sums: Vec<f64>,
    rows: Vec<f32>,
}

impl Pool {
    pub(crate) fn new(pooling: Pooling, embed_dim: usize) -> Self {
        Self {
            pooling,
            embed_dim,
            n_rows: 0,
            sums: vec![0.0; embed_dim],
            rows: Vec::new(),
        }
    }

    /// Takes the rows of the next tokens.
    pub(crate) fn push(&mut self, rows: &[f32]) {
        for row in rows.chunks_exact(self.embed_dim) {
            match self.pooling {
                Pooling::None => self.rows.extend_from_slice(row),
                Pooling::Mean => {
                    for (sum, value) in self.sums.iter_mut().zip(row) {
                        *sum += f64::from(*value);
                    }
                }
                Pooling::Cls if self.n_rows > 0 => (),
                Pooling::Cls | Pooling::Last | Pooling::Rank => {
                    self.rows.clear();
                    self.rows.extend_from_slice(row);
                }
            }
            self.n_rows += 1;
        }
    }

    /// The embedding, each row scaled to length 1 if `normalise`; a row of zeros stays one.
    pub(crate) fn finish(mut self, normalise: bool) -> Vec<f32> {
        if self.pooling == Pooling::Mean {
            let n_rows = self.n_rows.max(1) as f64;
            self.rows = self.sums.iter().map(|sum| (sum / n_rows) as f32).collect();
        }
        if normalise {
            for row in self.rows.chunks_exact_mut(self.embed_dim) {
                let squares: f64 = row.iter().map(|&value| f64::from(value).powi(2)).sum();
                if squares > 0.0 {
                    let scale = squares.sqrt().recip();
                    for value in row {
                        *value = (f64::from(*value) * scale) as f32;
                    }
                }
            }
        }
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(pooling: Pooling, normalise: bool) -> Vec<f32> {
        let mut pool = Pool::new(pooling, 2);
        pool.push(&[3.0, 4.0, 0.0, 0.0]);
        pool.push(&[9.0, 8.0]);
        pool.finish(normalise)
    }

    #[test]
    fn each_kind_takes_its_rows() {
        assert_eq!(pooled(Pooling::Cls, false), [3.0, 4.0]);
        assert_eq!(pooled(Pooling::Last, false), [9.0, 8.0]);
        assert_eq!(pooled(Pooling::Rank, false), [9.0, 8.0]);
        assert_eq!(pooled(Pooling::Mean, false), [4.0, 4.0]);
        assert_eq!(pooled(Pooling::None, false), [3.0, 4.0, 0.0, 0.0, 9.0, 8.0]);
        assert_eq!(pooled(Pooling::None, true)[..4], [0.6, 0.8, 0.0, 0.0]);
        for pooling in Pooling::ALL {
            assert_eq!(Pooling::from_name(pooling.name()), Some(pooling));
        }
    }
}
