/* Tasks in C++: coroutines that hop between the threads of a pool, each below its own span, with spans inside it that an exception leaves
 * and that hop along, and threads that are started inside of one. As with writer.c each call's offset says for which span it is to be taken.
 *
 * tasks FILE GO TASKS HOPS: for one span, AWAITED, there are calls until the file GO is there. At the end it says how many calls it made
 * below spans, and how many below none. */
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <coroutine>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "thread.h"

extern "C" {
__attribute__((visibility("default"))) thread_local record *otel_thread_ctx_v1 = nullptr;
}

namespace {

constexpr long AWAITED = 1L << 40 | 1;
constexpr int THREADS = 4;

int file;
std::atomic<long> below, none;

void call(long span)
{
	char byte;

	if (span != AWAITED)
		(span ? below : none)++;
	if (pread(file, &byte, 1, span) < 0)
		std::abort();
}

/* Never put into its caller: a coroutine goes on in another thread, whose slot is elsewhere. */
__attribute__((noinline)) record *publish(record *now)
{
	record *volatile *slot = &otel_thread_ctx_v1;
	record *before = *slot;

	std::atomic_signal_fence(std::memory_order_seq_cst);
	*slot = now;
	std::atomic_signal_fence(std::memory_order_seq_cst);
	return before;
}

/* What this thread does until its end is below this span. */
class Scope {
	record own;
	record *around;

public:
	explicit Scope(long span)
	{
		fill(&own, span);
		around = publish(&own);
	}
	~Scope() { publish(around); }
	Scope(const Scope &) = delete;
	Scope &operator=(const Scope &) = delete;
};

struct Task {
	struct promise_type {
		/* Of the span that it is in. */
		record *now = nullptr;

		Task get_return_object() { return {}; }
		std::suspend_never initial_suspend() { return {}; }
		std::suspend_never final_suspend() noexcept { return {}; }
		void return_void();
		void unhandled_exception() { std::terminate(); }
	};
};

using Handle = std::coroutine_handle<Task::promise_type>;

std::mutex lock;
std::condition_variable changed;
std::deque<Handle> ready;
long open_tasks;

/* Goes on in whichever thread comes first. */
struct Hop {
	bool await_ready() { return false; }
	void await_suspend(Handle task)
	{
		/* Another thread may have ended it by the time that this one is back from here. */
		publish(nullptr);
		std::lock_guard<std::mutex> held(lock);
		ready.push_back(task);
		changed.notify_one();
	}
	void await_resume() {}
};

/* From here on the task is in this span, wherever it goes on. */
struct Into {
	record *span;

	bool await_ready() { return false; }
	bool await_suspend(Handle task)
	{
		task.promise().now = span;
		publish(span);
		return false;
	}
	void await_resume() {}
};

void Task::promise_type::return_void()
{
	publish(nullptr);
	std::lock_guard<std::mutex> held(lock);
	if (--open_tasks == 0)
		changed.notify_all();
}

void fails(long span)
{
	Scope inside(span);

	call(span);
	throw std::runtime_error("out of it");
}

Task work(long number, int hops)
{
	long span = number << 20 | 1;
	record inner, own;

	co_await Hop{};
	fill(&own, span);
	co_await Into{&own};
	for (int i = 0; i < hops; i++) {
		call(span);
		try {
			fails(span + 1);
		} catch (const std::runtime_error &) {
			call(span);
		}
		co_await Hop{};
		call(span);
		fill(&inner, span + 2 * (i + 1));
		co_await Into{&inner};
		call(span + 2 * (i + 1));
		co_await Hop{};
		call(span + 2 * (i + 1));
		co_await Into{&own};
	}
	if (number % 16 == 0) {
		/* A thread of its own is in no span, whoever has started it, until it is in one. */
		std::async(std::launch::async, [span] {
			call(0);
			Scope told(span);
			call(span);
		}).get();
	}
	call(span);
}

void pool()
{
	for (;;) {
		std::unique_lock<std::mutex> held(lock);

		changed.wait(held, [] { return !ready.empty() || open_tasks == 0; });
		if (ready.empty())
			return;
		Handle task = ready.front();
		ready.pop_front();
		held.unlock();
		publish(task.promise().now);
		task.resume();
		publish(nullptr);
		call(0);
	}
}

}

int main(int count, char **words)
{
	if (count < 5 || (file = open(words[1], O_RDONLY)) < 0)
		return 2;
	{
		Scope waiting(AWAITED);

		do {
			call(AWAITED);
			usleep(500);
		} while (access(words[2], F_OK));
	}
	open_tasks = std::atol(words[3]);
	for (long number = 1, all = open_tasks; number <= all; number++)
		work(number, std::atoi(words[4]));
	std::vector<std::thread> threads;
	for (int i = 0; i < THREADS; i++)
		threads.emplace_back(pool);
	for (auto &thread : threads)
		thread.join();
	std::printf("below %ld none %ld\n", below.load(), none.load());
	return 0;
}
