"""Answer chat requests by votes: a gateway before a toy model, asked as any OpenAI-compatible server is."""

import json
import random
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from openai import OpenAI

from apportion.gateway import GatewaySettings, UpstreamSettings
from apportion.gateway.server import GatewayServer, listen


class Toy(BaseHTTPRequestHandler):
    """A model that is right three times out of four. Yours is vLLM, SGLang, llama.cpp or a hosted one."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = random.Random(request["seed"]).choice(["42", "42", "42", "41"])
        message = {"role": "assistant", "content": f"6 x 7 is easy. The answer is {answer}."}
        usage = {"prompt_tokens": 8, "completion_tokens": 9, "total_tokens": 17}
        reply = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
        body = json.dumps({"id": "toy", "object": "chat.completion", "created": 0, "model": "toy", **reply}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


upstream = ThreadingHTTPServer(("127.0.0.1", 0), Toy)
Thread(target=upstream.serve_forever, daemon=True).start()

# The same as `apportion serve --upstream http://127.0.0.1:.../v1 --port 0` in a shell.
socket = listen("127.0.0.1", 0)
gateway = GatewayServer(GatewaySettings(UpstreamSettings(f"http://127.0.0.1:{upstream.server_port}/v1")))
serving = Thread(target=gateway.run, kwargs={"sockets": [socket]})
serving.start()

with OpenAI(base_url=f"http://127.0.0.1:{socket.getsockname()[1]}/v1", api_key="none") as client:
    question = [{"role": "user", "content": "What is 6 x 7?"}]
    for n in (1, 2):
        completion = client.chat.completions.create(model="toy", messages=question, seed=1, n=n)
        ballot = completion.model_extra["apportion"]
        print([choice.message.content for choice in completion.choices])
        print(f"  {ballot['samples']} of {ballot['max_samples']} samples, votes {ballot['votes']}")

gateway.stop()
serving.join()
upstream.shutdown()
