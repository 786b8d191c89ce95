"""Layer-normalized LSTMs, and layers of other recurrent cells."""
