"""QuestionDesk: the service ~/infer and the action ~/ask, beside the stream of frames.

Both wait for the engine, which no callback of the perception node may do. They are served by a
hidden companion node with an executor and threads of its own; names and remappings are those of the
perception node.
"""

from __future__ import annotations

import threading
from typing import Any

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import MultiThreadedExecutor
from rclpy.node import Node

from photon_ros.action import Ask
from photon_ros.core.errors import PhotonError, RequestCancelled
from photon_ros.ros.compat import shut_down
from photon_ros.ros.inquiry import Inquiry, Source
from photon_ros.ros.open_questions import OpenQuestion, OpenQuestions
from photon_ros.srv import Infer

MAX_QUESTIONS = 4
# Two more than there may be questions, so that cancelling is served while all of them wait.
NUM_THREADS = MAX_QUESTIONS + 2
SPIN_WAIT_S = 0.1
JOIN_TIMEOUT_S = 0.3
CANCELING_TIMEOUT_S = 1.0


class QuestionDesk:
    """Serves from construction until closed; asks ``source`` for what it needs each time.

    Args:
        node: the perception node, whose names count.
        source: gives the inquiry of an active node; raises PhotonError when it is not.
    """

    def __init__(self, node: Node, source: Source) -> None:
        self._source = source
        self._logger = node.get_logger()
        self._questions = OpenQuestions(MAX_QUESTIONS)
        self._is_closing = False
        self._companion = Node(
            f"_{node.get_name()}_desk",
            namespace=node.get_namespace(),
            context=node.context,
            use_global_arguments=False,
            start_parameter_services=False,
            enable_rosout=False,
        )
        group = ReentrantCallbackGroup()
        self._companion.create_service(
            Infer,
            node.resolve_service_name("~/infer"),
            self._on_infer,
            callback_group=group,
        )
        self._actions = ActionServer(
            self._companion,
            Ask,
            node.resolve_service_name("~/ask"),
            self._on_ask,
            callback_group=group,
            goal_callback=self._on_goal,
            cancel_callback=self._on_cancel,
        )
        self._executor = MultiThreadedExecutor(NUM_THREADS, context=node.context)
        self._executor.add_node(self._companion)
        self._thread = threading.Thread(target=self._spin, name="photon-desk", daemon=True)
        self._thread.start()

    def _spin(self) -> None:
        while not self._is_closing and self._companion.context.ok():
            try:
                self._executor.spin_once(timeout_sec=SPIN_WAIT_S)
            # One question's defect is not the end of the others.
            except Exception as error:  # noqa: PERF203
                if not self._is_closing:
                    self._logger.error(f"a question could not be served: {error!r}")

    def give_up_all(self) -> None:
        """End every open question now; whoever asked is told."""
        self._questions.give_up_all()

    def close(self) -> None:
        """Give up what is open and serve no more; safe to call twice."""
        if self._is_closing:
            return
        self.give_up_all()
        self._is_closing = True
        self._executor.wake()
        self._thread.join(JOIN_TIMEOUT_S)
        if self._thread.is_alive():
            return  # the process ends, and what waits inside with it
        shut_down(self._executor)
        self._actions.destroy()
        self._companion.destroy_node()

    # ~/infer

    def _on_infer(self, request: Infer.Request, response: Infer.Response) -> Infer.Response:
        try:
            with self._questions.opened(object()) as question:
                self._infer(request, response, question)
        except PhotonError as error:
            response.message = str(error)
        except Exception as error:
            self._logger.error(f"~/infer failed: {error!r}")
            response.message = repr(error)
        return response

    def _infer(
        self, request: Infer.Request, response: Infer.Response, question: OpenQuestion
    ) -> None:
        inquiry: Inquiry = self._source()
        image = request.image if request.image.width or request.image.height else None
        decoded = inquiry.frame(request.camera, image)
        asked = inquiry.submit(decoded, request.skill, request.prompt)
        question.on_give_up(asked.give_up)
        outcome = asked.wait()
        response.success = outcome.is_answered
        response.message = outcome.array.error
        response.text = outcome.text
        response.result = outcome.array

    # ~/ask

    def _on_goal(self, goal: Ask.Goal) -> GoalResponse:
        del goal  # what is wrong with it is said in the result: a refusal has no words
        return GoalResponse.ACCEPT if self._questions.has_place else GoalResponse.REJECT

    def _on_cancel(self, goal_handle: Any) -> CancelResponse:
        if not goal_handle.is_active:
            return CancelResponse.REJECT
        self._questions.cancel(_key(goal_handle))
        return CancelResponse.ACCEPT

    def _on_ask(self, goal_handle: Any) -> Ask.Result:
        result = Ask.Result()
        try:
            with self._questions.opened(_key(goal_handle)) as question:
                self._ask(goal_handle, result, question)
        except Exception as error:
            if not isinstance(error, PhotonError):
                self._logger.error(f"~/ask failed: {error!r}")
            result.error = str(error) if isinstance(error, PhotonError) else repr(error)
            goal_handle.abort()
        return result

    def _ask(self, goal_handle: Any, result: Ask.Result, question: OpenQuestion) -> None:
        goal = goal_handle.request
        inquiry: Inquiry = self._source()
        decoded = inquiry.frame(goal.camera, None)
        result.header = decoded.header
        stream = inquiry.stream(decoded, goal.skill, goal.prompt, goal.max_tokens)
        question.on_give_up(stream.close)
        try:
            for piece in stream:
                result.text += piece
                goal_handle.publish_feedback(Ask.Feedback(text=piece))
        except RequestCancelled:
            if question.was_given_up:
                raise PhotonError("the node stopped before the answer was complete") from None
            if not question.was_cancelled:
                raise
            _await_canceling(goal_handle)
            goal_handle.canceled()
            return
        result.complete = stream.result.result().end_reason.is_complete
        goal_handle.succeed()


def _key(goal_handle: Any) -> bytes:
    return bytes(goal_handle.goal_id.uuid)


def _await_canceling(goal_handle: Any) -> None:
    """Wait until the server has put the goal into the state that it can be cancelled from.

    The stream ends as soon as the cancel callback closes it, a moment before that callback's
    answer changes the goal's state.
    """
    waited = threading.Event()
    for _ in range(round(CANCELING_TIMEOUT_S / 0.005)):
        if goal_handle.is_cancel_requested:
            return
        waited.wait(0.005)
