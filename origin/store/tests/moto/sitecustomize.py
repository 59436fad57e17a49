# Python reads this file before moto starts. moto checks the condition of a write and then writes, without a lock: of two
# writers that race for an object, now and then both win. So it answers one request at a time.
import threading

import werkzeug.serving

run_simple, lock = werkzeug.serving.run_simple, threading.Lock()


def run_one_at_a_time(host, port, app, **options):
    def answer(environ, start_response):
        with lock:
            return app(environ, start_response)

    run_simple(host, port, answer, **options)


werkzeug.serving.run_simple = run_one_at_a_time
