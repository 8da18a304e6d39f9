// What by_llama_cpp.py asks llama.cpp. Built against the llama.cpp that is to be asked:
//
//     c++ -O2 -std=c++17 -I llama.cpp/include -I llama.cpp/ggml/include tests/goldens/by_llama_cpp.cpp \
//         -L BUILD/bin -lllama -lggml -lggml-base -Wl,-rpath,BUILD/bin -o by_llama_cpp
//
// by_llama_cpp n_vocab MODEL                    the size of the vocabulary, as text
// by_llama_cpp tokenize_each MODEL              texts and ids in turn, each behind its size as a 32-bit number; nothing is special
// by_llama_cpp tokenize MODEL < TEXT > IDS      behind the model's begin of sequence if it has one; nothing in the text is special
// by_llama_cpp logits MODEL f32|f16 < IDS > LOGITS
// by_llama_cpp dequantize MODEL OUT             the same numbers as F32
//
// Ids are 32-bit integers, logits f32, [n_ids, n_vocab]: computed on the CPU in one pass, without flash attention and without repacked
// weights (some machines' kernels for them, AMX, crash), keys and values cached in the given type.

#include "llama.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

static int fail(const char * what) {
    fprintf(stderr, "by_llama_cpp: %s\n", what);
    return 1;
}

template <class T> static std::vector<T> read_all() {
    std::vector<T> all;
    for (T x; fread(&x, sizeof x, 1, stdin) == 1;) {
        all.push_back(x);
    }
    return all;
}

static int tokenize(const llama_vocab * vocab) {
    const std::vector<char> text = read_all<char>();
    std::vector<llama_token> ids(text.size() + 1);
    const int32_t n = llama_tokenize(vocab, text.data(), (int32_t) text.size(), ids.data(), (int32_t) ids.size(), true, false);
    return n < 0 || fwrite(ids.data(), sizeof ids[0], n, stdout) != (size_t) n ? fail("the text can't be tokenized") : 0;
}

static int tokenize_each(const llama_vocab * vocab) {
    for (uint32_t n; fread(&n, sizeof n, 1, stdin) == 1;) {
        std::vector<char> text(n);
        if (fread(text.data(), 1, n, stdin) != n) {
            return fail("a text is cut");
        }
        std::vector<llama_token> ids(n + 8);
        const int32_t n_ids = llama_tokenize(vocab, text.data(), (int32_t) n, ids.data(), (int32_t) ids.size(), false, false);
        if (n_ids < 0) {
            return fail("a text can't be tokenized");
        }
        fwrite(&n_ids, sizeof n_ids, 1, stdout);
        fwrite(ids.data(), sizeof ids[0], n_ids, stdout);
        fflush(stdout);
    }
    return 0;
}

static int logits(llama_model * model, int32_t n_vocab, ggml_type cache) {
    const std::vector<llama_token> ids = read_all<llama_token>();
    const int32_t n = (int32_t) ids.size();
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = 1024;
    params.type_k = params.type_v = cache;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.swa_full = true;
    llama_context * context = llama_init_from_model(model, params);
    if (!context) {
        return fail("no context");
    }
    llama_batch batch = llama_batch_init(n, 0, 1);
    batch.n_tokens = n;
    for (int32_t i = 0; i < n; i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    if (llama_decode(context, batch) != 0) {
        return fail("the pass failed");
    }
    for (int32_t i = 0; i < n; i++) {
        fwrite(llama_get_logits_ith(context, i), sizeof(float), n_vocab, stdout);
    }
    return 0;
}

int main(int argc, char ** argv) {
    const std::string command = argc > 2 ? argv[1] : "";
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level >= GGML_LOG_LEVEL_ERROR) { fputs(text, stderr); }
    }, nullptr);
    llama_backend_init();
    if (command == "dequantize" && argc == 4) {
        llama_model_quantize_params params = llama_model_quantize_default_params();
        params.ftype = LLAMA_FTYPE_ALL_F32;
        params.allow_requantize = true;
        return llama_model_quantize(argv[2], argv[3], &params) == 0 ? 0 : fail("the model can't be dequantized");
    }
    if (command.empty()) {
        return fail("usage: by_llama_cpp n_vocab|tokenize|tokenize_each|logits|dequantize MODEL ...");
    }
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    params.use_extra_bufts = false;
    params.vocab_only = command != "logits";
    llama_model * model = llama_model_load_from_file(argv[2], params);
    if (!model) {
        return fail("the model can't be loaded");
    }
    const llama_vocab * vocab = llama_model_get_vocab(model);
    const int32_t n_vocab = llama_vocab_n_tokens(vocab);
    if (command == "n_vocab") {
        return printf("%d\n", n_vocab) > 0 ? 0 : 1;
    }
    if (command == "tokenize_each") {
        return tokenize_each(vocab);
    }
    if (command == "tokenize") {
        return tokenize(vocab);
    }
    return logits(model, n_vocab, argc > 3 && std::string(argv[3]) == "f16" ? GGML_TYPE_F16 : GGML_TYPE_F32);
}
