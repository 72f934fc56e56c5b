// Generates text with Tokamak's C++ API: a stream, a conversation and a batch.
//   cmake -S . -B build -DCMAKE_PREFIX_PATH=/where/tokamak/is/installed && cmake --build build
//   build/generate model.gguf
#include <iostream>
#include <string>
#include <tokamak/tokamak.h>

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: generate MODEL\n";
    return 2;
  }
  try {
    tokamak::Model model(argv[1], {.context = 512});

    // Text, piece by piece. Temperature 0 always takes the likeliest token.
    std::string prompt = "The capital of France is";
    std::cout << prompt;
    for (const std::string& piece : model.stream(prompt, {.max_tokens = 12, .temperature = 0}))
      std::cout << piece << std::flush;
    std::cout << "\n\n";

    // A conversation: the model's own chat template turns messages into a prompt.
    tokamak::Chat chat = {{"system", "You answer in one sentence."},
                          {"user", "Why is the sky blue?"}};
    tokamak::Result answer = model.generate(chat, {.max_tokens = 48, .seed = 7});
    std::cout << answer.text << "\n(" << answer.ids.size() << " tokens, "
              << tokamak::finish_reason_name(answer.finish) << ")\n\n";

    // Several prompts at once share the steps of the engine.
    for (const tokamak::Result& r :
         model.generate_batch({"One, two,", "Red, green,"}, {.max_tokens = 6, .temperature = 0}))
      std::cout << r.text << "\n";
  } catch (const tokamak::Error& e) {
    std::cerr << "error: " << e.what() << "\n";
    return 1;
  }
}
