/*
 * A program with two USDT probes, for tests: each turn begins with its number, reads one byte at that offset, and ends.
 *
 * The notes are written by hand, as systemtap's sys/sdt.h makes them, so that the test chooses where the arguments are:
 * in registers, in memory at a register, in the instruction.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NOTE(name, semaphore, arguments)                                                             \
    "990: nop\n"                                                                                     \
    ".pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n"                                          \
    ".4byte 992f-991f, 994f-993f, 3\n991: .asciz \"stapsdt\"\n992: .balign 4\n"                      \
    "993: .8byte 990b, _.stapsdt.base, " semaphore "\n"                                              \
    ".asciz \"turns\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n994: .balign 4\n.popsection\n" \
    ".ifndef _.stapsdt.base\n"                                                                       \
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                          \
    ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n"                       \
    ".size _.stapsdt.base, 1\n.popsection\n.endif\n"

/* Semaphore: tracers increment it while they are attached. */
__attribute__((section(".probes"), used)) unsigned short turns_begin_semaphore;

static void __attribute__((noinline)) begin(uint64_t number, const char *label)
{
    int32_t minus = -(int32_t)number;
    volatile int32_t here[2] = {0, minus};
    if (turns_begin_semaphore)
        __asm__ volatile(NOTE("begin", "turns_begin_semaphore", "8@%0 -4@%1 8@%2 -4@%3 4@$7")
                         : : "r"(number), "r"(minus), "r"(label), "m"(here[1]));
}

static void __attribute__((noinline)) end(uint64_t number)
{
    __asm__ volatile(NOTE("end", "0", "8@%0") : : "r"(number));
}

/* turns FILE TURNS [CYCLE]: in each cycle of CYCLE turns it sleeps for 60 ms after the first hundred and after the last. */
int main(int count, char **args)
{
    /* On the stack, because a page that has not been touched cannot be read at a probe. */
    char byte, text[] = "some words";
    int file = open(args[1], O_RDONLY);
    long turns = atol(args[2]), cycle = count > 3 ? atol(args[3]) : 0, failed = 0;
    for (long turn = 0; turn < turns; turn++) {
        begin(turn, text);
        failed += pread(file, &byte, 1, turn) != 1;
        end(turn);
        /* Between two turns, so outside of any span. */
        failed += pread(file, &byte, 1, turns + turn) != 1;
        if (cycle && (turn % cycle == 99 || turn % cycle == cycle - 1))
            usleep(60000);
    }
    printf("%d %ld\n", turns_begin_semaphore, failed);
    return failed != 0;
}
