"""One timed run of a peer, inside its environment. Prints JSON."""
import json
import sys
import time


def llama_cpp(model, n_prompt, n_gen, threads):
    """Tokens per second of one prefill and one generation, after a warm-up."""
    import ctypes

    import llama_cpp as L

    n_prompt, n_gen, threads = int(n_prompt), int(n_gen), int(threads)
    silent = L.llama_log_callback(lambda level, text, data: None)
    L.llama_log_set(silent, ctypes.c_void_p(0))
    L.llama_backend_init()
    loaded = L.llama_model_load_from_file(model.encode(), L.llama_model_default_params())
    params = L.llama_context_default_params()
    params.n_ctx = max(n_prompt, n_gen) + 64
    params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = threads
    ctx = L.llama_init_from_model(loaded, params)
    n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(loaded))

    def decode(tokens):
        array = (L.llama_token * len(tokens))(*tokens)
        if L.llama_decode(ctx, L.llama_batch_get_one(array, len(tokens))) != 0:
            raise RuntimeError("llama_decode failed")
        L.llama_synchronize(ctx)

    def clear():
        L.llama_memory_clear(L.llama_get_memory(ctx), True)

    prompt = [(i * 7919 + 13) % n_vocab for i in range(n_prompt)]
    decode(prompt[:32])
    decode(prompt[:1])
    clear()
    start = time.perf_counter()
    for i in range(0, n_prompt, 512):
        decode(prompt[i:i + 512])
    prefill = n_prompt / (time.perf_counter() - start)
    clear()
    start = time.perf_counter()
    for i in range(n_gen):
        decode([prompt[i % n_prompt]])
    return [prefill, n_gen / (time.perf_counter() - start)]


def faster_whisper(folder, audio, threads):
    """Seconds to load, and of the second of two transcriptions."""
    from faster_whisper import WhisperModel

    start = time.perf_counter()
    model = WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=int(threads))
    load = time.perf_counter() - start
    for _ in range(2):
        start = time.perf_counter()
        segments, _info = model.transcribe(audio, beam_size=5, word_timestamps=True)
        text = "".join(s.text for s in segments)
        seconds = time.perf_counter() - start
    return {"load": load, "seconds": seconds, "text": text}


def sentence_transformers(folder, lines, threads):
    """Seconds to embed the lines of a file, the second time."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(int(threads))
    model = SentenceTransformer(folder, device="cpu")
    texts = open(lines, encoding="utf-8").read().splitlines()
    for _ in range(2):
        start = time.perf_counter()
        model.encode(texts, batch_size=32)
        seconds = time.perf_counter() - start
    return {"seconds": seconds}


RUNS = {"llama-cpp": llama_cpp, "faster-whisper": faster_whisper, "sentence-transformers": sentence_transformers}

if __name__ == "__main__":
    print(json.dumps(RUNS[sys.argv[1]](*sys.argv[2:])))
