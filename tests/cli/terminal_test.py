"""What a person at a terminal sees: Ctrl-C, the commands of `chat`, progress bars. Runs on a pseudo-terminal."""
import fcntl
import os
import pty
import select
import signal
import subprocess
import tempfile
import termios
import time
import unittest

BINARY = os.environ["TOKAMAK_BINARY"]
MODEL = os.environ["TOKAMAK_TEST_MODEL"]


class Terminal:
    """A program whose three standard streams are one terminal."""

    def __init__(self, *args):
        master, slave = pty.openpty()
        self.program = subprocess.Popen([BINARY, *args], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                        env={**os.environ, "TERM": "xterm"},
                                        preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.master = master
        self.seen = ""
        self.at = 0

    def wait_for(self, text, seconds=120):
        """Reads until `text` comes after what was waited for before; returns what lay between."""
        end = time.monotonic() + seconds
        while (found := self.seen.find(text, self.at)) < 0:
            if not self.read(end - time.monotonic()):
                raise AssertionError(f"{text!r} did not come; after the last find: {self.seen[self.at:]!r}")
        between = self.seen[self.at:found]
        self.at = found + len(text)
        return between

    def read(self, seconds):
        if seconds <= 0 or not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:  # Linux: the program has closed its side
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)

    def type(self, text):
        os.write(self.master, text.encode())

    def close(self):
        """The exit code; the rest of the output is in `seen`."""
        while self.read(60):
            pass
        os.close(self.master)
        return self.program.wait(timeout=60)


class Chat(unittest.TestCase):
    def test_control_c_stops_the_answer_and_not_the_program(self):
        t = Terminal("chat", MODEL, "--temperature", "0", "--activations", "f32")
        t.wait_for("loaded in")
        t.wait_for("> ")
        t.type("Write a story of a thousand words about the sea.\n")
        t.wait_for("\n")  # the echo
        while len(t.seen) - t.at < 20:
            self.assertTrue(t.read(60), "no answer")
        t.type("\x03")
        story = t.wait_for("(stopped)")
        self.assertLess(len(story), 4000)
        t.wait_for("> ")
        t.type("/reset\n")
        t.wait_for("(new conversation)")
        t.wait_for("> ")
        t.type("What is the capital of France?\n")
        t.wait_for("\n")
        self.assertIn("Paris", t.wait_for("\n"))
        t.wait_for("> ")
        t.type("/nonsense\n")
        t.wait_for("/help")
        t.wait_for("> ")
        t.type("/exit\n")
        self.assertEqual(t.close(), 0)

    def test_control_d_leaves(self):
        t = Terminal("chat", MODEL)
        t.wait_for("> ")
        t.type("\x04")
        self.assertEqual(t.close(), 0)


class Run(unittest.TestCase):
    def test_control_c_ends_with_what_there_is(self):
        t = Terminal("run", MODEL, "Once upon a time", "--max-tokens", "2000", "--temperature", "0")
        t.wait_for(", ")  # the text has begun: before that, Ctrl-C ends the loading by the signal itself
        t.type("\x03")
        self.assertEqual(t.close(), -signal.SIGINT)


class Progress(unittest.TestCase):
    def test_perplexity_shows_a_bar_on_a_terminal_and_none_in_a_pipe(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
            text.write("The sea is wide and the ship is small. " * 200)
            text.flush()
            t = Terminal("eval", "perplexity", MODEL, text.name, "--window", "128", "--tokens", "1024")
            t.wait_for("%")
            self.assertTrue(t.wait_for("(nll").rpartition("perplexity")[0].endswith("\r\x1b[K"))  # the bar is erased before
            self.assertEqual(t.close(), 0)
            piped = subprocess.run([BINARY, "eval", "perplexity", MODEL, text.name, "--window", "128", "--tokens", "256"],
                                   capture_output=True, text=True, check=True)
            self.assertNotIn("\r", piped.stdout + piped.stderr)

    def test_bench_erases_its_bar_before_the_table(self):
        t = Terminal("bench", "latency", MODEL, "--prompt", "4", "--gen", "2", "--repeat", "1")
        self.assertTrue(t.wait_for("threads ").rstrip(" ").endswith("\r\x1b[K"))
        self.assertEqual(t.close(), 0)

    def test_a_reader_that_has_gone(self):
        """As in `tokamak inspect MODEL --tensors 2>&1 | head -1`."""
        reader, writer = os.pipe()
        os.close(reader)
        for args, code in ((["inspect", "--families"], 141), (["inspect", MODEL, "--tensors"], 141), (["inspect", "none.gguf"], 1)):
            done = subprocess.run([BINARY, *args], stdout=writer, stderr=writer, timeout=60)
            self.assertEqual(done.returncode, code, args)
        os.close(writer)


if __name__ == "__main__":
    unittest.main(verbosity=2)
